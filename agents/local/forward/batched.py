"""Batches through a transformers model itself, with a key-value cache of rows.

The rows of a batch have different lengths. transformers' own caches hold rows of one length, padded
on the left, so that a row cannot enter, end or continue without copying all others. Here each row
starts at position 0 of its own part of the cache. Position ids and masks, which the model's forward
pass accepts, say where the tokens of a batch are and what they read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from agents.local.forward.batch import Batch, Ints
from agents.local.forward.cache_names import cache_name
from agents.local.forward.fallback import difference, evaluating
from agents.local.forward.models import attention_obstacle, trunk_of
from agents.local.forward.routers import Recording, prepare, using


class BatchedForward:
    """Runs batches through the transformers model itself; see the module's docstring."""

    kind = "batched"
    shares_rows = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cache_name = cache_name(model)
        self._span = _Span()
        self._windows = attention_windows(model)
        self._routing = prepare(model)
        self.refresh()

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Give the cache ``num_rows`` rows of ``capacity`` positions; see :class:`Forward`."""
        self._span.num_rows, self._span.capacity = num_rows, capacity
        # Not inference mode: tensors that are made in it cannot be changed outside of it.
        with torch.inference_mode(False):
            for layer in self._layers:
                layer.reserve()

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        for layer in self._layers:
            layer.swap(a, b, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        for layer in self._layers:
            layer.copy(source, target, length)

    def clear(self, row: int) -> None:
        """Do nothing, because values beyond a row's length are never read."""

    def reset(self) -> None:
        """Empty every row, and free the cache's memory."""
        self._span.num_rows = self._span.capacity = 0
        self.refresh()

    def refresh(self) -> None:
        """Empty every row, because its cache belongs to the previous weights."""
        # The cache calls this for each of the model's layers.
        make: Any = partial(_RowLayer, self._span)
        self._cache: Any = Cache(layer_class_to_replicate=make)
        self._experts = _RowLayer(self._span)
        """The experts of each token, in a mixture: kept, moved and copied as keys are."""

    def run(self, batch: Batch) -> Tensor:
        """Logits of the decoding rows, ``[D, V]`` in fp32."""
        count = len(batch.decode_ids)
        # Not inference mode: tensors that the model stores must stay usable in training.
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._model):
            if len(batch.chunk_sizes):
                # Without the head: nothing is sampled after these tokens.
                trunk = trunk_of(self._model)
                self._extend(trunk, count, batch.chunk_ids, batch.chunk_sizes, batch.starts[count:])
            if not count:
                return torch.empty(0, device=self._model.device)
            ids, sizes = batch.decode_ids[:, None], np.ones(count, dtype=np.int64)
            output = self._extend(self._model, 0, ids, sizes, batch.starts[:count])
        logits: Tensor = output.logits[:, -1]
        return logits.float()

    def experts(self, row: int, length: int) -> NDArray[np.integer[Any]] | None:
        """The experts that computed the first tokens of a row; see :class:`Forward`."""
        if self._routing is None:
            return None
        layers, top_k, _ = self._routing
        kept = self._experts.read(row, length)[0].unflatten(-1, (layers, top_k))
        # A copy: the row changes.
        found: NDArray[np.integer[Any]] = kept.cpu().numpy().astype(self._routing.dtype)
        return found

    @property
    def _layers(self) -> list[_RowLayer]:
        layers: list[_RowLayer] = self._cache.layers
        return [*layers, self._experts]

    def _extend(
        self, model: Callable[..., Any], first: int, ids: Ints, sizes: Ints, starts: Ints
    ) -> Any:
        """Append ``ids [P, C]`` to the ``P`` rows from ``first``, and return the model's output.

        Of each row's ids, the first ``sizes [P]`` are tokens and the others are padding.
        """
        positions = starts[:, None] + np.arange(ids.shape[1])
        # Padding repeats the last position: a later one may be beyond the model's table.
        known = np.minimum(positions, (starts + sizes - 1)[:, None])
        packed = torch.from_numpy(np.stack((ids, positions, known))).to(self._model.device)
        token_ids, columns, position_ids = packed.unbind()
        self._span.set(first, columns, length=int(positions.max()) + 1)
        recording = Recording()
        with using(recording):
            output = model(
                input_ids=token_ids,
                position_ids=position_ids,
                attention_mask=self._masks(columns),
                **{self._cache_name: self._cache},
                use_cache=True,
            )
        if self._routing is not None:
            self._keep(recording, token_ids)
        return output

    def _keep(self, recording: Recording, token_ids: Tensor) -> None:
        """Keep the experts of the tokens ``[P, C]`` of a forward pass."""
        assert self._routing is not None
        layers, top_k, _ = self._routing
        experts = token_ids.new_zeros((token_ids.numel(), layers, top_k), dtype=torch.int16)
        for layer, chosen in recording.experts.items():
            experts[:, layer] = chosen
        rows = experts.view(len(token_ids), 1, token_ids.shape[1], layers * top_k)
        self._experts.update(rows, rows[..., :0])

    def _masks(self, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """Attention masks of tokens at ``positions [P, C]``: one, or one for each type of layer."""
        columns = torch.arange(self._span.length, device=positions.device)
        queries = positions[:, :, None]
        masks = {}
        for kind, window in self._windows.items():
            visible = columns <= queries
            if window is not None and kind == "chunked_attention":
                visible &= columns >= queries // window * window
            elif window is not None:
                visible &= columns > queries - window
            mask = torch.zeros(visible.shape, dtype=self._model.dtype, device=positions.device)
            masks[kind] = mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))


class _Span:
    """The positions that one forward pass writes. They are the same in all layers."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.capacity = 0
        """Number of positions per row."""
        self.length = 0
        """Number of positions that the longest row has after the forward pass."""

    def set(self, first: int, columns: Tensor, length: int) -> None:
        """Set the positions to write next: ``columns [P, C]`` of the ``P`` rows from ``first``."""
        self.rows = slice(first, first + len(columns))
        self.row_ids = torch.arange(first, first + len(columns), device=columns.device)[:, None]
        self.columns, self.length = columns, length


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer: ``[R, heads, capacity, head_dim]`` each."""

    def __init__(self, span: _Span) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._span = span
        self._rows: tuple[Tensor, ...] = ()
        """Keys and values, or nothing before the first forward pass."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate rows with the heads, head size and type of these keys and values."""
        count, capacity = self._span.num_rows, self._span.capacity
        # Zeros, because values beyond a row's length are masked, and masking needs finite values.
        self._rows = tuple(
            states.new_zeros(count, states.shape[1], capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the tokens' keys and values, and return those of the rows of the forward pass."""
        if not self._rows:
            self.lazy_initialization(key_states, value_states)
        span = self._span
        for rows, states in zip(self._rows, (key_states, value_states), strict=True):
            rows[span.row_ids, :, span.columns] = states.transpose(1, 2)
        keys, values = (rows[span.rows, :, : span.length] for rows in self._rows)
        return keys, values

    def read(self, row: int, length: int) -> Tensor:
        """The first keys of a row: ``[heads, length, head_dim]``."""
        return self._rows[0][row, :, :length]

    def reserve(self) -> None:
        """Resize to the span's numbers of rows and positions. Values that fit are kept."""
        if self._rows:
            former = self._rows
            self.lazy_initialization(*former)
            for resized, rows in zip(self._rows, former, strict=True):
                count = min(len(resized), len(rows))
                width = min(resized.shape[2], rows.shape[2])
                resized[:count, :, :width] = rows[:count, :, :width]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        for rows in self._rows:
            kept = rows[a, :, :length].clone()
            rows[a, :, :length] = rows[b, :, :length]
            rows[b, :, :length] = kept

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        for rows in self._rows:
            rows[target, :, :length] = rows[source, :, :length]

    def get_seq_length(self) -> int:
        """Number of positions of the longest row. The masks account for shorter rows."""
        return self._span.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of positions that the tokens can read, and the first position."""
        return self._span.length, 0

    def get_max_length(self) -> int:
        """-1, because rows grow."""
        return -1


def attention_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The number of positions that a token reads, by type of the model's layers.

    None means all positions.
    """
    text: Any = model.config.get_text_config()
    sizes = {
        "sliding_attention": getattr(text, "sliding_window", None),
        "chunked_attention": getattr(text, "attention_chunk_size", None),
    }
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        # Models that name no types have layers of one type.
        kinds = [kind for kind, size in sizes.items() if size] or ["full_attention"]
        # Moshi's configuration states a window that its code does not read.
        if not hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask"):
            kinds = ["full_attention"]
    return {kind: sizes.get(kind) for kind in kinds}


def batch_obstacle(model: PreTrainedModel, *, own: bool) -> str | None:
    """The reason why :class:`BatchedForward` does not support this model, or None if it does.

    As a test, a batch of two short rows is computed; see
    :func:`agents.local.forward.fallback.difference`.
    """
    if not model.is_backend_compatible():
        return "its attention does not use transformers' interface for masks"
    obstacle = attention_obstacle(model.config)
    return obstacle or difference(BatchedForward(model), model, own=own)

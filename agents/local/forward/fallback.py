"""Forward pass for architectures that are not computed in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agents.local.forward.batch import Batch, Forward
from agents.local.forward.cache_names import cache_name

_TOLERANCE = {True: 1e-4, False: 2e-3}
"""Largest accepted relative difference of logits in :func:`difference`, for the model itself, and
for a copy with weights changed at random, some of whose sums are rounded much."""
_WIDTH = 16
"""Number of tokens of a test row in :func:`difference`."""


class TransformersForward:
    """Runs each row separately through the transformers model, with the model's own cache.

    This is slow, because rows are not batched and share nothing. It is exact for every kind of
    attention, because the model processes one sequence without padding.

    Args:
        model: the model.
        positions: whether the model gets each token's position. Some models count cached tokens
            themselves, and some do not.
    """

    kind = "transformers"
    shares_rows = False

    def __init__(self, model: PreTrainedModel, *, positions: bool = False) -> None:
        self._model: Any = model
        self._positions = positions
        self._lengths: list[int] = []
        self._cache_name = cache_name(model)
        self._caches: list[Any] = []

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Change the number of rows. Positions are added when they are used."""
        del self._caches[num_rows:], self._lengths[num_rows:]
        missing = num_rows - len(self._caches)
        self._caches += [None] * missing
        self._lengths += [0] * missing

    def experts(self, row: int, length: int) -> None:
        """None: experts are not recorded."""

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows."""
        for rows in (self._caches, self._lengths):
            rows[a], rows[b] = rows[b], rows[a]

    def copy(self, source: int, target: int, length: int) -> None:
        """Never called, because these caches cannot be shortened."""
        raise AssertionError("rows of a transformers cache are not shared")

    def clear(self, row: int) -> None:
        """Empty the row."""
        self._caches[row], self._lengths[row] = None, 0

    def reset(self) -> None:
        """Drop every row."""
        self._caches, self._lengths = [], []

    def refresh(self) -> None:
        """Empty every row, because its cache belongs to the previous weights."""
        for row in range(len(self._caches)):
            self.clear(row)

    def run(self, batch: Batch) -> Tensor:
        """Logits of the decoding rows, ``[D, V]`` in fp32."""
        num_decode = len(batch.decode_ids)
        # Not inference mode: tensors that the model stores must stay usable in training.
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._model):
            for index, size in enumerate(batch.chunk_sizes):
                self._extend(num_decode + index, batch.chunk_ids[index, :size])
            logits = [
                self._extend(row, batch.decode_ids[row : row + 1]) for row in range(num_decode)
            ]
        if not logits:
            return torch.empty(0, device=self._model.device)
        return torch.stack(logits).float()

    def _extend(self, row: int, token_ids: np.ndarray) -> Tensor:
        """Append tokens to a row, and return the logits ``[V]`` after the last one."""
        given = {self._cache_name: self._caches[row]}
        end = self._lengths[row] + len(token_ids)
        if self._positions:
            positions = torch.arange(self._lengths[row], end, device=self._model.device)
            given["position_ids"] = positions[None]
        ids = torch.from_numpy(token_ids)[None].to(self._model.device)
        output = self._model(input_ids=ids, **given, use_cache=True)
        self._caches[row], self._lengths[row] = getattr(output, self._cache_name), end
        last: Tensor = output.logits[0, -1]
        return last


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Disable dropout, and restore each module's mode afterwards for the learner."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def difference(forward: Forward, model: PreTrainedModel, *, own: bool) -> str | None:
    """The reason why ``forward`` is wrong for ``model``, or None if its logits are right.

    ``forward`` must have no rows, and the weights must be float32 or float64: those of the model
    itself (``own``), or of a copy from :func:`agents.local.forward.trial.trial_of`. The test
    computes the last logits of two short rows twice: with
    ``forward``, which caches all tokens but the last in two chunks and then decodes the last one,
    and with the model without a cache. The second chunk is what a tool's result is in an episode:
    several tokens after cached ones, which models with a recurrent state may compute as if the row
    began with them.
    """
    given: Any = model
    config = model.config.get_text_config()
    rows = np.random.default_rng(0).integers(0, config.vocab_size, (2, _WIDTH))
    sizes = np.array([_WIDTH - 1, _WIDTH // 2])
    nothing, none = np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.int64)
    try:
        forward.reserve(2, _WIDTH)
        middle = sizes // 2
        forward.run(Batch(nothing, rows[:, :-1], middle, np.zeros(2, dtype=np.int64)))
        columns = np.minimum(middle[:, None] + np.arange(_WIDTH // 2), _WIDTH - 1)
        rest = np.take_along_axis(rows, columns, axis=1)
        forward.run(Batch(nothing, rest, sizes - middle, middle))
        found = forward.run(Batch(rows[[0, 1], sizes], none, nothing, sizes))
        with torch.inference_mode(False), torch.no_grad(), evaluating(model):
            for row, size, logits in zip(rows, sizes, found, strict=True):
                ids = torch.from_numpy(row[None, : size + 1]).to(model.device)
                expected = given(input_ids=ids, use_cache=False).logits[0, -1].float()
                expected = expected - expected.mean()
                off = float((logits - logits.mean() - expected).norm() / expected.norm())
                # Not a number if all logits are equal, as with a head of zeros.
                if off > (most := _TOLERANCE[own]):
                    return f"logits with its cache are off by {off:.1g}, more than {most:g}"
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None

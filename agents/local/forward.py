"""The model's forward pass for decoding rows and prefill chunks, with a row-wise cache."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from agents.local.slots import Ints

_THIN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
"""RoPE variants whose frequencies change with the longest sequence: cached keys become stale."""


class Batch(NamedTuple):
    """Input of one forward pass: a token for each of the first rows, chunks for the next rows."""

    decode_ids: Ints
    """``[D]``: the newest token of rows 0 .. D-1."""
    chunk_ids: Ints
    """``[P, C]``: tokens of rows D .. D+P-1, right-padded."""
    chunk_sizes: Ints
    """``[P]``: number of tokens without padding. Padding is computed but never read."""
    starts: Ints
    """``[D + P]``: number of cached positions of each row before this forward pass."""


class Forward(Protocol):
    """Computes batches, and caches the keys and values of ``R`` rows. A new object has no rows."""

    kind: str
    shares_rows: bool
    """Whether rows can be shortened and copied to one another."""

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Give the cache ``num_rows`` rows of ``capacity`` positions.

        Cached values are kept where both the former and the new cache have the row and position.
        """
        ...

    def run(self, batch: Batch) -> Tensor:
        """Logits of the decoding rows, ``[D, V]`` in fp32."""
        ...

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        ...

    def clear(self, row: int) -> None:
        """Empty the row."""
        ...

    def reset(self) -> None:
        """Empty every row, and free the cache's memory."""
        ...

    def refresh(self) -> None:
        """Recompute everything that depends on the weights, which changed."""
        ...


def thin_obstacle(model: PreTrainedModel, context_window: int) -> str | None:
    """The reason why :class:`ThinForward` does not support this model, or None if it does."""
    if type(model) not in _THIN:
        return "does not support this architecture"
    config: Any = model.config
    rope_type = config.rope_parameters["rope_type"]
    if rope_type in POSITION_DEPENDENT_ROPE:
        return f"does not support rotary embeddings of type {rope_type!r}"
    window = None if isinstance(model, LlamaForCausalLM) else config.sliding_window
    if window is not None and window < context_window:
        return f"has no window of {window} of {context_window} positions"
    return None


def context_window(config: PretrainedConfig) -> int:
    """Maximum number of tokens in one sequence of the model.

    Raises:
        ValueError: the configuration states none.
    """
    window: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if window is None:
        raise ValueError(
            f"the model is of type {config.model_type}, whose config.json states no context "
            "window (max_position_embeddings): set one, or use another model"
        )
    return window


def rope_window(config: PretrainedConfig) -> int | None:
    """Longest sequence, in tokens, for which rotary embeddings do not depend on its length.

    None if the embeddings never depend on the sequence's length.
    """
    text: Any = config.get_text_config()
    given = getattr(text, "rope_parameters", None) or {}
    windows = []
    # One set of parameters, or one for each type of layer.
    for rope in [given] if "rope_type" in given else given.values():
        if isinstance(rope, dict) and rope.get("rope_type") in POSITION_DEPENDENT_ROPE:
            windows += [rope.get("original_max_position_embeddings"), text.max_position_embeddings]
    return min((window for window in windows if window), default=None)


def position_bytes(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token in all layers."""
    config: Any = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize
    return size


class ThinForward:
    """A decoder of the Llama family, computed from the modules of the transformers model.

    This class calls the model's modules, so it uses the weights that an optimizer changes in place.
    It is faster because it builds no masks and no cache objects, and does not repeat key-value
    heads. Query heads that share a key-value head are folded into the length axis.
    """

    kind = "thin"
    shares_rows = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._layers = [_Layer.of(layer, model) for layer in self._model.model.layers]
        attention = self._model.model.layers[0].self_attn
        self._head_dim: int = attention.head_dim
        self._groups: int = attention.num_key_value_groups
        self._scaling: float = attention.scaling
        self._num_kv_heads: int = model.config.num_key_value_heads
        self._cache: list[Tensor] = []
        """Keys and values of each layer, ``[2, R, heads, capacity, head_dim]``."""
        self._keys: list[Tensor]
        self._values: list[Tensor]
        self.reset()

    def _allocate(self, num_rows: int, capacity: int) -> None:
        """Replace the cache layer by layer, so that memory never holds two whole caches."""
        weight: Tensor = self._model.model.embed_tokens.weight
        shape = (2, num_rows, self._num_kv_heads, capacity, self._head_dim)
        self._keys, self._values = [], []  # These would keep the former cache in memory.
        for index, former in enumerate(self._cache):
            # Zeros, because values beyond a row's length are masked, and masking needs finite
            # values.
            self._cache[index] = cached = weight.new_zeros(shape)
            rows, width = min(num_rows, former.shape[1]), min(capacity, former.shape[3])
            cached[:, :rows, :, :width] = former[:, :rows, :, :width]
        self._keys = [cached[0] for cached in self._cache]
        self._values = [cached[1] for cached in self._cache]
        self._shape = (num_rows, capacity)
        positions = torch.arange(capacity, device=weight.device)
        cos, sin = self._model.model.rotary_emb(weight, positions[None])
        # rotate_half(x) is x rolled by half with its first half negated. The sign is applied here.
        half = self._head_dim // 2
        self._cos = cos[0][:, None]
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Give the cache ``num_rows`` rows of ``capacity`` positions; see :class:`Forward`."""
        self._allocate(num_rows, capacity)

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        for cached in self._cache:
            first, second = cached[:, a, :, :length], cached[:, b, :, :length]
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        for cached in self._cache:
            cached[:, target, :, :length] = cached[:, source, :, :length]

    def clear(self, row: int) -> None:
        """Do nothing, because values beyond a row's length are never read."""

    def reset(self) -> None:
        """Empty every row, and free the cache's memory."""
        weight: Tensor = self._model.model.embed_tokens.weight
        empty = (2, 0, self._num_kv_heads, 0, self._head_dim)
        self._cache = [weight.new_zeros(empty) for _ in self._layers]
        self._allocate(0, 0)

    def refresh(self) -> None:
        """Reallocate the cache if the weights' dtype or device changed."""
        weight: Tensor = self._model.model.embed_tokens.weight
        cached = self._cache[0]
        if (weight.dtype, weight.device) != (cached.dtype, cached.device):
            shape = self._shape
            self.reset()
            self._allocate(*shape)

    def run(self, batch: Batch) -> Tensor:
        """Logits of the decoding rows, ``[D, V]`` in fp32."""
        num_decode = len(batch.decode_ids)
        at, blocks = self._place(batch)
        trunk = self._model.model
        hidden = trunk.embed_tokens(at.token_ids)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            query = self._project(index, _norm(layer.attention_norm, hidden), at)
            if index == last:
                # Chunks only need keys and values, which are cached at this point.
                hidden, query = hidden[:num_decode], query[:num_decode]
                blocks = blocks[:1] if num_decode else []
            mixed = [self._attend(index, query, block) for block in blocks]
            if mixed:
                joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
                hidden = hidden + layer.o_proj(joined)
                hidden = hidden + layer.mlp(_norm(layer.mlp_norm, hidden))
        logits: Tensor = self._model.lm_head(_norm(trunk.norm, hidden))
        return logits.float()

    def _place(self, batch: Batch) -> tuple[_Tokens, list[_Block]]:
        """The cache positions of the batch's tokens, and the blocks that are computed together."""
        num_decode = len(batch.decode_ids)
        num_chunks, width = batch.chunk_ids.shape
        chunk_positions = batch.starts[num_decode:, None] + np.arange(width)
        row_ids = np.arange(num_decode + num_chunks)
        packed = np.stack(
            (
                np.concatenate((batch.decode_ids, batch.chunk_ids.ravel())),
                np.concatenate((row_ids[:num_decode], row_ids[num_decode:].repeat(width))),
                np.concatenate((batch.starts[:num_decode], chunk_positions.ravel())),
            )
        )
        token_ids, rows, positions = torch.from_numpy(packed).to(self._cos.device).unbind()
        tokens = _Tokens(token_ids, rows, positions, self._cos[positions], self._sin[positions])
        blocks = []
        if num_decode:
            starts = batch.starts[:num_decode]
            blocks.append(self._block(slice(0, num_decode), positions[:num_decode, None], starts))
        if num_chunks:
            span = positions[num_decode:].view(num_chunks, width)
            starts = batch.starts[num_decode:]
            blocks.append(self._block(slice(num_decode, len(row_ids)), span, starts))
        return tokens, blocks

    def _block(self, rows: slice, positions: Tensor, starts: Ints) -> _Block:
        """The block of ``rows`` and its mask. The rows' tokens have ``positions [P, C]``."""
        num_rows, width = positions.shape
        length = int(starts.max()) + width
        if width == 1 and int(starts.min()) + 1 == length:
            return _Block(rows, width, length, None)
        visible = torch.arange(length, device=positions.device) <= positions[:, :, None]
        mask = torch.zeros(visible.shape, dtype=self._cache[0].dtype, device=positions.device)
        mask.masked_fill_(~visible, -torch.inf)
        folded = mask[:, None].expand(num_rows, self._groups, width, length)
        return _Block(rows, width, length, folded.reshape(num_rows, 1, -1, length))

    def _project(self, index: int, normed: Tensor, at: _Tokens) -> Tensor:
        """Cache the keys and values of ``normed [N, H]``.

        Returns queries ``[N, heads, head_dim]``.
        """
        layer = self._layers[index]
        heads = (len(normed), -1, self._head_dim)
        query = layer.q_proj(normed).view(heads)
        key = layer.k_proj(normed).view(heads)
        value = layer.v_proj(normed).view(heads)
        if layer.q_norm is not None:
            query, key = _norm(layer.q_norm, query), _norm(layer.k_norm, key)
        self._keys[index][at.rows, :, at.positions] = _rotate(key, at)
        self._values[index][at.rows, :, at.positions] = value
        return _rotate(query, at)

    def _attend(self, index: int, query: Tensor, block: _Block) -> Tensor:
        """Attention output ``[rows * C, heads * head_dim]`` of the block's tokens."""
        # In narrower types two products would round the scores; the fused kernel does not.
        if block.width == 1 and query.dtype == torch.float32:
            return self._attend_tokens(index, query, block)
        return self._attend_chunks(index, query, block)

    def _attend_tokens(self, index: int, query: Tensor, block: _Block) -> Tensor:
        """Attention output ``[rows, heads * head_dim]`` of rows with one token each.

        For few queries, two matrix products are faster than the fused kernel.
        """
        rows = block.rows
        count = rows.stop - rows.start
        folded = (query[rows] * self._scaling).view(-1, self._groups, self._head_dim)
        keys = self._keys[index][rows, :, : block.length].flatten(0, 1)
        values = self._values[index][rows, :, : block.length].flatten(0, 1)
        scores = torch.bmm(folded, keys.transpose(1, 2))
        if block.mask is not None:
            scores.view(count, self._num_kv_heads, self._groups, -1).add_(block.mask)
        return torch.bmm(scores.softmax(-1), values).view(count, -1)

    def _attend_chunks(self, index: int, query: Tensor, block: _Block) -> Tensor:
        """Attention output ``[rows * C, heads * head_dim]`` of the block's tokens."""
        rows, width = block.rows, block.width
        count = rows.stop - rows.start
        folded = (
            # All rows before these have one token, so the first row's index is its token's index.
            query[rows.start : rows.start + count * width]
            .view(count, width, self._num_kv_heads, self._groups, self._head_dim)
            .permute(0, 2, 3, 1, 4)
            .reshape(count, self._num_kv_heads, self._groups * width, self._head_dim)
        )
        mixed = F.scaled_dot_product_attention(
            folded,
            self._keys[index][rows, :, : block.length],
            self._values[index][rows, :, : block.length],
            attn_mask=block.mask,
            scale=self._scaling,
        )
        return (
            mixed.view(count, self._num_kv_heads, self._groups, width, self._head_dim)
            .permute(0, 3, 1, 2, 4)
            .reshape(count * width, -1)
        )


class _Layer(NamedTuple):
    """The modules of one decoder layer, looked up once because module attributes are slow."""

    attention_norm: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any
    q_norm: Any
    """Normalises each head's queries, as ``k_norm`` does for keys. Both are None in an architecture
    without these norms."""
    k_norm: Any
    mlp_norm: Any
    mlp: Any

    @classmethod
    def of(cls, layer: Any, model: PreTrainedModel) -> _Layer:
        """The modules of ``layer`` of ``model``."""
        attention = layer.self_attn
        normalises_heads = isinstance(model, Qwen3ForCausalLM)
        return cls(
            attention_norm=layer.input_layernorm,
            q_proj=attention.q_proj,
            k_proj=attention.k_proj,
            v_proj=attention.v_proj,
            o_proj=attention.o_proj,
            q_norm=attention.q_norm if normalises_heads else None,
            k_norm=attention.k_norm if normalises_heads else None,
            mlp_norm=layer.post_attention_layernorm,
            mlp=layer.mlp,
        )


class _Tokens(NamedTuple):
    """The tokens of a batch, ``[N]`` each, and their rotary angles ``[N, 1, head_dim]``."""

    token_ids: Tensor
    rows: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    """Sines with the first half negated; see :func:`_rotate`."""


class _Block(NamedTuple):
    """``P`` rows with ``C`` tokens each, whose attention is computed together."""

    rows: slice
    width: int
    length: int
    mask: Tensor | None
    """``[P, 1, groups * C, length]``, added to the scores. None if no position is masked."""


def _norm(module: Any, hidden: Tensor) -> Tensor:
    weight: Tensor = module.weight
    return F.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def _rotate(heads: Tensor, at: _Tokens) -> Tensor:
    """Rotary embedding (Su et al. 2021, section 3.4.2) of ``[N, heads, head_dim]``.

    The formula is ``x * cos + rotate_half(x) * sin``. rotate_half is a roll by half, with the first
    half negated. ``at.sin`` contains this sign.
    """
    return torch.addcmul(heads * at.cos, heads.roll(heads.shape[-1] // 2, -1), at.sin)

"""The forward pass of the Llama family, with a row-wise cache and shared prefixes."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, Qwen3ForCausalLM

from agents.local.forward.batch import Batch, Ints
from agents.local.forward.cache import KeyValueCache
from agents.local.forward.prefixes import SharedPrefixes, SharedReads


class ThinForward:
    """A decoder of the Llama family, computed from the modules of the transformers model.

    This class calls the model's modules, so it uses the weights that an optimizer changes in place.
    It is faster because it builds no masks and no cache objects, and does not repeat key-value
    heads. Query heads that share a key-value head are folded into the length axis.
    """

    kind = "thin"
    shares_rows = True

    def __init__(self, model: PreTrainedModel, max_positions: int = sys.maxsize) -> None:
        self._model: Any = model
        self._layers = [_Layer.of(layer, model) for layer in self._model.model.layers]
        attention = self._model.model.layers[0].self_attn
        self._head_dim: int = attention.head_dim
        self._groups: int = attention.num_key_value_groups
        self._scaling: float = attention.scaling
        self._num_kv_heads: int = model.config.num_key_value_heads
        self._max_positions = max_positions
        self.reset()

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Give the cache ``num_rows`` rows of ``capacity`` positions; see :class:`Forward`."""
        self._prefixes.resize(num_rows, capacity)
        self._cache.resize(num_rows, capacity)
        positions = torch.arange(capacity, device=self._cache.device)
        cos, sin = self._model.model.rotary_emb(self._weight, positions[None])
        # rotate_half(x) is x rolled by half with its first half negated. The sign is applied here.
        half = self._head_dim // 2
        self._cos = cos[0][:, None]
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]

    @property
    def _weight(self) -> Tensor:
        """A weight of the model, whose type and device the cache has."""
        weight: Tensor = self._model.model.embed_tokens.weight
        return weight

    def experts(self, row: int, length: int) -> None:
        """None: experts are not recorded."""

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, which use at most ``length`` positions."""
        self._cache.swap(a, b, length)
        self._prefixes.swap(a, b)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of row ``source`` to row ``target``."""
        self._cache.copy(self._cache, source, target, length)
        self._prefixes.share(source, target, length)

    def clear(self, row: int) -> None:
        """Do nothing, because values beyond a row's length are never read."""

    def reset(self) -> None:
        """Empty every row, and free the cache's memory."""
        heads = self._num_kv_heads, self._head_dim
        self._cache = KeyValueCache(self._weight, len(self._layers), *heads)
        self._prefixes = SharedPrefixes(self._cache, self._max_positions)
        self.reserve(0, 0)

    def refresh(self) -> None:
        """Forget shared prefixes. Reallocate the cache if the weights' dtype or device changed."""
        cache, weight = self._cache, self._weight
        if (weight.dtype, weight.device) != (cache.dtype, cache.device):
            self.reset()
            self.reserve(cache.num_rows, cache.capacity)
        self._prefixes.drop()

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
        self._prefixes.shorten(batch.starts)
        if num_decode:
            starts, decoding = batch.starts[:num_decode], slice(0, num_decode)
            shared = self._prefixes.reads(num_decode)
            blocks.append(self._block(decoding, positions[:num_decode, None], starts, shared))
        if num_chunks:
            span = positions[num_decode:].view(num_chunks, width)
            starts = batch.starts[num_decode:]
            blocks.append(self._block(slice(num_decode, len(row_ids)), span, starts))
        return tokens, blocks

    def _block(
        self, rows: slice, positions: Tensor, starts: Ints, shared: SharedReads | None = None
    ) -> _Block:
        """The block of ``rows`` and its mask. The rows' tokens have ``positions [P, C]``."""
        num_rows, width = positions.shape
        length = int(starts.max()) + width
        first, is_even = (shared.first, shared.is_even) if shared is not None else (0, True)
        if width == 1 and is_even and int(starts.min()) + 1 == length:
            return _Block(rows, width, length, None, shared)
        columns = torch.arange(first, length, device=positions.device)
        visible = columns <= positions[:, :, None]
        if shared is not None:
            visible &= columns >= shared.lengths[:, :, None]
        mask = torch.zeros(visible.shape, dtype=self._cache.dtype, device=positions.device)
        mask.masked_fill_(~visible, -torch.inf)
        folded = mask[:, None].expand(num_rows, self._groups, width, length - first)
        return _Block(rows, width, length, folded.reshape(num_rows, 1, -1, length - first), shared)

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
        self._cache.keys[index][at.rows, :, at.positions] = _rotate(key, at)
        self._cache.values[index][at.rows, :, at.positions] = value
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
        rows, shared = block.rows, block.shared
        count = rows.stop - rows.start
        folded = (query[rows] * self._scaling).view(-1, self._groups, self._head_dim)
        columns = slice(shared.first if shared is not None else 0, block.length)
        keys = self._cache.keys[index][rows, :, columns].flatten(0, 1)
        values = self._cache.values[index][rows, :, columns].flatten(0, 1)
        scores = torch.bmm(folded, keys.transpose(1, 2))
        if block.mask is not None:
            scores.view(count, self._num_kv_heads, self._groups, -1).add_(block.mask)
        if shared is None:
            return torch.bmm(scores.softmax(-1), values).view(count, -1)
        mixed, weight = _weighed(scores, values)
        prefix, prefix_weight = self._attend_prefixes(index, folded, shared)
        return mixed.lerp_(prefix, (prefix_weight - weight).sigmoid_()).view(count, -1)

    def _attend_prefixes(
        self, index: int, queries: Tensor, shared: SharedReads
    ) -> tuple[Tensor, Tensor]:
        """Attention of ``queries [D * kv_heads, groups, head_dim]`` over the shared prefixes.

        Returns the output, of the same shape, and its log-sum-exp ``[D * kv_heads, groups, 1]``.
        """
        keys, values = shared.keys[index], shared.values[index]
        # The queries of all rows of a prefix are one matrix.
        folded = queries.index_select(0, shared.members).view(len(keys), -1, self._head_dim)
        scores = torch.bmm(folded, keys.transpose(1, 2))
        if shared.mask is not None:
            shape = (-1, self._num_kv_heads, shared.num_members, self._groups, scores.shape[-1])
            scores.view(shape).add_(shared.mask)
        mixed, weight = _weighed(scores, values)
        return (
            mixed.view(-1, *queries.shape[1:]).index_select(0, shared.places),
            weight.view(-1, self._groups, 1).index_select(0, shared.places),
        )

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
        keys = self._cache.keys[index][rows, :, : block.length]
        if keys.stride(-1) != 1:
            # The fused kernel reads adjacent dimensions only.
            keys = keys.contiguous()
        mixed = F.scaled_dot_product_attention(
            folded,
            keys,
            self._cache.values[index][rows, :, : block.length],
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
    """``[P, 1, groups * C, length]``, added to the scores. None if no position is masked. Without
    the columns of shared prefixes."""
    shared: SharedReads | None
    """The prefixes that the rows read together."""


def _weighed(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp of ``scores [B, Q, T]`` over ``values [B, T, head_dim]``."""
    probs = scores.softmax(-1)
    # The largest probability is the exponential of the largest score without the log-sum-exp.
    weight = scores.amax(-1, keepdim=True) - probs.amax(-1, keepdim=True).log()
    return torch.bmm(probs, values), weight


def _norm(module: Any, hidden: Tensor) -> Tensor:
    weight: Tensor = module.weight
    return F.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def _rotate(heads: Tensor, at: _Tokens) -> Tensor:
    """Rotary embedding (Su et al. 2021, section 3.4.2) of ``[N, heads, head_dim]``.

    The formula is ``x * cos + rotate_half(x) * sin``. rotate_half is a roll by half, with the first
    half negated. ``at.sin`` contains this sign.
    """
    return torch.addcmul(heads * at.cos, heads.roll(heads.shape[-1] // 2, -1), at.sin)

"""Attention over packed rows, as an attention function of Hugging Face's models.

:func:`prepare` gives a model this attention function. The function computes only packed rows, and
passes every other call to Hugging Face's ``sdpa``. Packed rows pass through the model's own
``forward``. Their layout is a keyword argument, so that layers that are computed again in the
backward pass receive the layout as well.

A call of :func:`hidden_states` also passes a mask of four dimensions, which no layer reads. Without
a mask, transformers would mistake the jumps in the positions of shared prefixes for borders of
documents. For padded rows, it would read the positions on the host, which then waits for the GPU in
each forward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from inspect import signature
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agents.local.forward import attention_obstacle, rope_window, trial_of, trunk_of
from rl.packing.layout import Bucket, Chunk, Layout, pack
from rl.packing.prefixes import Integers, split

logger = logging.getLogger(__name__)

NAME = "turnwise_packed"
Padded = Literal["padded"]
PADDED: Final = "padded"
"""Passed instead of a layout for causal rows that are padded on the right. They need no mask."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Largest difference between packed and separate hidden states that :func:`prepare` accepts, as a
share of the largest hidden state of the sequence. The key is the type of the weights."""
COARSE_TOLERANCE = 0.05
"""Largest accepted difference for types with few digits, such as bfloat16; see ``TOLERANCE``."""
_variable_length = True
"""Whether packed rows on CUDA use variable-length attention."""


def hidden_states(trunk: nn.Module, input_ids: Tensor, layout: Layout | None) -> Tensor:
    """The last hidden states of rows: ``[B, T, H]``.

    Args:
        trunk: a model without its head, whose model :func:`prepare` accepted.
        input_ids: ``[B, T]``; B is 1 for a packed row.
        layout: layout of the packed row, or None for rows that are padded on the right.
    """
    unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
    # Given for padded rows as well: some models would count the tokens of the mask.
    columns = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    hidden: Tensor = trunk(
        input_ids=input_ids,
        attention_mask=unread,
        position_ids=columns if layout is None else layout.positions,
        use_cache=False,
        packed=layout or PADDED,
    ).last_hidden_state
    return hidden


def prepare(model: PreTrainedModel) -> str | None:
    """Prepare ``model`` for packed rows. Returns None, or the reason if it cannot compute them.

    All other calls of the model give the same results, bit for bit. To test the model, the function
    computes the hidden states of a few random sequences that share prefixes, once as a packed row
    and once one by one, and compares them. A model of few digits is compared twice: a copy in
    float32 shows what the model computes, and the model itself what its kernels compute.
    """
    now = model.config._attn_implementation
    if now not in ("sdpa", NAME):
        return f"its attention is {now}, not sdpa"
    if (obstacle := attention_obstacle(model.config)) is not None:
        return obstacle
    model.set_attn_implementation(NAME)
    trial = trial_of(model)
    reason = None if trial is model else _measured(trial)
    reason = reason or _difference(model)
    if reason is not None:
        model.set_attn_implementation("sdpa")
    return reason


def longest_row(model: PreTrainedModel) -> int | None:
    """Maximum tokens of a sequence in a packed row, or None if there is no limit.

    In longer sequences, layers with a window read only the newest tokens, and some rotary
    embeddings change the frequencies of all tokens that are computed together.
    """
    config = model.config.get_text_config()
    windows = [rope_window(config)]
    if set(getattr(config, "layer_types", None) or ["?"]) != {"full_attention"}:
        windows += [getattr(config, n, None) for n in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if window), default=None)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: Layout | Padded | None = None,
    scaling: float | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function for transformers. Tensors are ``[B, heads, T, D]``."""
    if not isinstance(packed, Layout):
        mask = None if packed == PADDED else attention_mask
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **given)
    half = query.dtype in (torch.float16, torch.bfloat16)
    attend = _by_lengths if query.is_cuda and half and _variable_length else _by_buckets
    if len(packed.chunks) == 1:
        return attend(query, key, value, packed, packed.chunks[0], scaling), None
    # The backward pass copies the keys of shared prefixes again, one chunk at a time.
    run = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
    parts = query.split([chunk.num_tokens for chunk in packed.chunks], dim=2)
    results = [
        run(part, key, value, packed, chunk, scaling)
        for part, chunk in zip(parts, packed.chunks, strict=True)
    ]
    return torch.cat(results, dim=1), None


def _by_buckets(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, chunk: Chunk, scaling: float | None
) -> Tensor:
    """Attention of a chunk, one batch for each bucket: ``[1, tokens of the chunk, heads, D]``."""
    buckets = [layout.buckets[i] for i in chunk.buckets]
    queries = query[0].split([bucket.size for bucket in buckets], dim=1)
    read = _read(key, layout, chunk), _read(value, layout, chunk)
    masks = [layout.masks[i] for i in chunk.buckets]
    results = []
    for bucket, own, keys, values, mask in zip(buckets, queries, *read, masks, strict=True):
        result = scaled_dot_product_attention(
            _segments(bucket, own),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        results.append(result.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)[None]


def _read(x: Tensor, layout: Layout, chunk: Chunk) -> Iterator[Tensor]:
    """For each bucket, the keys or values that it reads: ``[segments, heads, num_keys, D]``.

    ``x`` has the keys or values of all tokens of the row.
    """
    # One split has one backward pass; slices would each fill a gradient as long as the row.
    parts = x[0].split(layout.sizes, dim=1)
    for i in chunk.buckets:
        bucket = layout.buckets[i]
        yield _segments(bucket, parts[i], [parts[j] for j in bucket.prefix])


def _segments(bucket: Bucket, own: Tensor, prefix: Sequence[Tensor] = ()) -> Tensor:
    """``own`` ``[heads, tokens, D]`` as a batch of segments, each after ``prefix``."""
    batch: Tensor = own.unflatten(1, (bucket.count, bucket.length)).transpose(0, 1)
    if not prefix:
        return batch
    shared = [part.expand(bucket.count, -1, -1, -1) for part in prefix]
    return torch.cat([*shared, batch], dim=2)


def _by_lengths(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, chunk: Chunk, scaling: float | None
) -> Tensor:
    """Attention of a chunk on CUDA, by lengths: ``[1, tokens of the chunk, heads, D]``."""
    from torch.nn.attention.varlen import varlen_attn

    keys, values = (
        torch.cat([part.transpose(1, 2).flatten(0, 1) for part in _read(x, layout, chunk)])
        for x in (key, value)
    )
    result = varlen_attn(
        query[0].transpose(0, 1),
        keys,
        values,
        chunk.query_starts,
        chunk.key_starts,
        chunk.longest_query,
        chunk.longest_key,
        scale=scaling,
        # No later key: a query's own key is the last one that it reads.
        window_size=(-1, 0),
        **_grouped(varlen_attn),
    )
    assert isinstance(result, Tensor)
    return result[None]


@cache
def _grouped(attend: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments of ``attend`` with which several query heads share a key head.

    Torch 2.11 has no such argument and does not need one.
    """
    return {"enable_gqa": True} if "enable_gqa" in signature(attend).parameters else {}


def _difference(model: PreTrainedModel) -> str | None:
    """The reason why packed hidden states of ``model`` are wrong, or None if they are right."""
    global _variable_length
    reason = _measured(model)
    if reason is not None and model.device.type == "cuda" and _variable_length:
        _variable_length = False
        logger.warning("packed rows use sdpa: variable-length attention is not usable (%s)", reason)
        reason = _measured(model)
    return reason


@torch.no_grad()
def _measured(model: PreTrainedModel) -> str | None:
    sequences = _samples(model.config.get_text_config().vocab_size)
    (part,) = split(sequences, [[i] for i in range(len(sequences))], sum(map(len, sequences)))
    ordered = [sequences[i] for i in part.sequences]
    row = pack(ordered, part.shared)
    trunk, device = trunk_of(model), model.device
    ids = torch.from_numpy(row.token_ids)[None].to(device)
    try:
        packed = hidden_states(trunk, ids, row.layout.map(lambda x: x.to(device)))[0]
        for sequence, places in zip(ordered, row.places, strict=True):
            alone = torch.from_numpy(sequence)[None].to(device)
            expected = trunk(input_ids=alone, use_cache=False).last_hidden_state[0]
            padded = hidden_states(trunk, pad(alone, (0, 5)), None)[0, : len(sequence)]
            for found in (packed[torch.from_numpy(places).to(device)], padded):
                off = (found - expected).abs().max()
                limit = TOLERANCE.get(model.dtype, COARSE_TOLERANCE) * expected.abs().max()
                if not off <= limit:
                    return f"hidden states differ by {off:.1g}, where {limit:.1g} is rounding"
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def _samples(vocabulary: int) -> Sequence[Integers]:
    """Seven random sequences of tokens.

    Five share a prompt: two of them have equal length, and one is a prefix of two others. The last
    two share nothing.
    """
    drawn = np.random.default_rng(0)

    def tokens(count: int) -> Integers:
        return drawn.integers(0, vocabulary, count)

    prompt, turn = tokens(18), tokens(17)
    branches = [[tokens(9)], [tokens(9)], [turn, tokens(3)], [turn, tokens(5)], [turn]]
    return [*(np.concatenate([prompt, *branch]) for branch in branches), tokens(13), tokens(30)]


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)

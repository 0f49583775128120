"""Log-probabilities of sampled tokens over their sampling support.

The support of a token is the set of tokens that top-k and top-p kept. :func:`token_head` computes
the log-probabilities without holding all logits in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEAD_BYTES = 2**27
"""Default size of the head's buffers: 128 MiB, enough for 110 positions of a vocabulary of 152k."""
BUFFERS = 2
"""Number of buffers that the head needs for each logit, in the precision of its softmax."""
FAR_BELOW = -1e30
"""Logit of a token outside the support. The logit gives probability 0, but is finite, so that 0
times the logit is 0."""


@dataclass(frozen=True, slots=True)
class Support:
    """The token ids from which each of n tokens was sampled.

    A token without ids was sampled from the whole vocabulary. The sampler renormalises its
    distribution over the support, so the learner must do the same: a ratio of probabilities is
    biased if only one of the two distributions is restricted.
    """

    ids: Tensor
    """Token ids of all supports, concatenated. ``int32``."""
    owners: Tensor
    """``int32``: for each entry of ``ids``, the index of the sampled token, from 0 to n - 1."""
    limited: Tensor
    """``[n]`` booleans, whether a token has ids."""
    starts: Tensor
    """``[n + 1]``, on the CPU: the ids of token i are starts[i] to starts[i + 1]."""

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Sequence[Sequence[int]]]], num_tokens: int) -> Support:
        """The support of ``num_tokens`` tokens.

        Args:
            parts: spans of tokens in order, each as the index of its first token and the ids of
                every token. Other tokens have the whole vocabulary.
            num_tokens: number of tokens.
        """
        counts = torch.zeros(num_tokens, dtype=torch.int64)
        for first, supports in parts:
            counts[first : first + len(supports)] = torch.tensor([len(ids) for ids in supports])
        # One span at a time, as a call of NumPy on lists lets no other thread run.
        ids = [np.fromiter(chain.from_iterable(supports), np.int32) for _, supports in parts]
        joined = np.concatenate([np.empty(0, np.int32), *ids])
        return cls._of_counts(torch.from_numpy(joined), counts)

    @classmethod
    def _of_counts(cls, ids: Tensor, counts: Tensor) -> Support:
        owners = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
        return cls(ids, owners, counts > 0, _starts(counts))

    def of_tokens(self, tokens: Tensor) -> Support:
        """The support of the tokens with these indices, ``[m]``."""
        counts = self.starts.diff()[tokens]
        # Each id keeps its offset from the first id of its token.
        shift = (self.starts[tokens] - _starts(counts)[:-1]).repeat_interleave(counts)
        return self._of_counts(self.ids[shift + torch.arange(len(shift))], counts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Support:
        """A copy with ``change`` applied to the tensors. ``starts`` stays on the CPU."""
        return Support(change(self.ids), change(self.owners), change(self.limited), self.starts)

    def outside(self, first: int, stop: int, vocabulary: int) -> Tensor:
        """Whether each id is outside a token's support: ``[stop - first, vocabulary]`` booleans.

        The tokens are those from ``first`` up to ``stop``. A token from the whole vocabulary
        excludes no id.
        """
        span = slice(int(self.starts[first]), int(self.starts[stop]))
        outside = self.limited[first:stop, None].repeat(1, vocabulary)
        outside[self.owners[span] - first, self.ids[span]] = False
        return outside


def _starts(counts: Tensor) -> Tensor:
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))


def token_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    support: Support | None = None,
    max_bytes: int = HEAD_BYTES,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and entropy of its distribution, at ``temperature``.

    Logits are computed in chunks of positions. The last chunk is kept; the backward pass starts
    with it and computes all other chunks again. Softmax and logarithm are computed in float32
    (float64 for a float64 model), whatever the model's type.

    Args:
        hidden: ``[n, H]``.
        weight: ``[V, H]``.
        bias: ``[V]`` or None.
        targets: ``[n]`` token ids.
        temperature: logits are divided by it.
        support: sampling support of the targets, to which each distribution is restricted. None
            means the whole vocabulary.
        max_bytes: size of the buffers of one chunk; a chunk has at least one position.

    Returns:
        ``logprobs`` and ``entropy``, both ``[n]``; both are differentiable.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = _TokenHead.apply
    return apply(hidden, weight, bias, targets, temperature, support, max_bytes)


def _log_p(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float,
    outside: Tensor | None,
) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits.to(_precision(logits.dtype))
    if temperature != 1:
        logits.div_(temperature)
    if outside is not None:
        logits.masked_fill_(outside, FAR_BELOW)
    return logits.log_softmax(-1)


def _precision(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _TokenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        support: Support | None,
        max_bytes: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.support = temperature, support
        ctx.rows = _rows(weight, max_bytes)
        logprobs, entropy = [], []
        ctx.last = None
        for part in _parts(len(hidden), ctx.rows):
            # This chunk's buffers take the place of the former one's.
            ctx.last = None
            log_p = _log_p(hidden[part], weight, bias, temperature, _outside(support, part, weight))
            logprobs.append(log_p.gather(1, targets[part, None])[:, 0])
            entropy.append(log_p.exp().mul_(log_p).sum(-1).neg_())
            ctx.last = log_p
            del log_p
        out = torch.cat(logprobs), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, bias, targets, out[1])
        return out

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        wanted = dict(zip(("hidden", "weight", "bias"), ctx.needs_input_grad, strict=False))
        sums = _precision(weight.dtype)
        grad_hidden = torch.empty_like(hidden) if wanted["hidden"] else None
        grad_weight = torch.zeros_like(weight, dtype=sums) if wanted["weight"] else None
        grad_bias = torch.zeros_like(bias, dtype=sums) if wanted["bias"] else None
        for part in reversed(_parts(len(hidden), ctx.rows)):
            h, log_p, ctx.last = hidden[part], ctx.last, None
            if log_p is None:
                outside = _outside(ctx.support, part, weight)
                log_p = _log_p(h, weight, bias, ctx.temperature, outside)
                del outside
            grad = _grad_logits(
                log_p,
                targets[part],
                entropy[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
            )
            del log_p
            if ctx.temperature != 1:
                grad.div_(ctx.temperature)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad.T, h)
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=sums)
            del grad
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _rows(weight: Tensor, max_bytes: int) -> int:
    """Number of positions in a chunk."""
    of_position = weight.shape[0] * BUFFERS * _precision(weight.dtype).itemsize
    return max(1, max_bytes // of_position)


def _parts(count: int, rows: int) -> list[slice]:
    """Spans of at most ``rows`` rows. If ``count`` is 0, there is one empty span."""
    return [slice(i, min(i + rows, count)) for i in range(0, max(count, 1), rows)]


def _outside(support: Support | None, part: slice, weight: Tensor) -> Tensor | None:
    if support is None:
        return None
    return support.outside(part.start, part.stop, weight.shape[0])


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total``, in place.

    If the types differ, only a GPU adds without a temporary matrix.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _grad_logits(
    log_p: Tensor,
    targets: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """``g (onehot - p) - g_entropy p (log p + entropy)``, the gradient of the scaled logits.

    The result overwrites ``log_p``.
    """
    slope = torch.zeros_like(entropy)[:, None]
    if grad_entropy is not None:
        slope = (log_p + entropy[:, None]).mul_(-grad_entropy[:, None])
    if grad_logprobs is not None:
        slope = slope.sub_(grad_logprobs[:, None])
    grad = log_p.exp_().mul_(slope)
    if grad_logprobs is not None:
        grad.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return grad

"""Ratios of two policies at sampled tokens, which are the inputs of surrogates and corrections.

Shapes: ``[N]`` is the sampled tokens of an update, ``[n]`` those of one micro-batch. This module
does not import torch, because command lines are parsed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Bound of the magnitude of log-ratios. e^20 is finite and outside of any clip."""


def log_ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    """``log(pi / other)``, clamped so that its exponential stays finite. ``[N]``."""
    return (logprobs - other).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """``-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)``, per token.

    This is PPO's loss (Schulman et al. 2017, equation 7). Unequal bounds are DAPO's clip-higher
    (section 3.1). ``dual_clip`` c limits the loss to ``-c A`` where A < 0 (Ye et al. 2020, equation
    5).

    Args:
        ratio: ``[N]``, pi / pi_old.
        advantages: ``[N]``.
        clip_low: lower bound of the ratio, as a distance from 1.
        clip_high: upper bound of the ratio, as a distance from 1.
        dual_clip: c > 1, or None for plain clipping.
    """
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = plain.maximum(clipped)
    if dual_clip is None:
        return loss
    return loss.minimum(-dual_clip * advantages).where(advantages < 0, loss)


def clip_regions(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Whether the lower bound (A < 0) and the upper bound (A > 0) stop each token's gradient.

    ``[N]`` booleans each.
    """
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    return low, high


def row_sums(x: Tensor, rows: Tensor) -> Tensor:
    """At each token, the sum of ``x`` over the tokens of its sequence. ``[n]``."""
    index = _numbered(rows)
    return x.new_zeros(x.shape).index_add(0, index, x)[index]


def _numbered(rows: Tensor) -> Tensor:
    """``rows`` renumbered as 0, 1, ... in the same order.

    Unlike ``Tensor.unique``, this function does not make the host wait for the device.
    """
    ordered, order = rows.sort()
    numbers = (ordered != ordered.roll(1)).cumsum(0)
    return numbers.new_empty(rows.shape).scatter_(0, order, numbers - numbers[:1])


def row_means(x: Tensor, rows: Tensor) -> Tensor:
    """At each token, the mean of ``x`` over the tokens of its sequence. ``[n]``."""
    return row_sums(x, rows) / row_sums(x.new_ones(x.shape), rows)


@dataclass(frozen=True, slots=True)
class SurrogateLoss:
    """The policy's loss at each token, and the tokens that a bound changed."""

    loss: Tensor
    """``[n]``, the loss of each token, which is minimised."""
    below: Tensor | None = None
    """``[n]`` booleans: whether the lower bound stops the token's gradient, or, in ``cispo``,
    limits it. None if the bound changes no token."""
    above: Tensor | None = None
    """``[n]`` booleans: whether the upper bound stops the token's gradient, or, in ``cispo``,
    limits it. None if the bound changes no token."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Probabilities of a micro-batch's n sampled tokens under two policies."""

    logprobs: Tensor
    """``[n]``, log pi, through which the gradient flows."""
    old: Tensor
    """``[n]``, log pi_old."""
    advantages: Tensor
    """``[n]``, the advantage of each token."""
    rows: Tensor
    """``[n]`` integers >= 0; tokens with equal numbers belong to one sequence (an episode, or a
    role's part of it). With ``by_sequence``, a micro-batch has all tokens of its sequences."""
    of_sampler: bool = False
    """Whether pi_old is the sampler's recorded log-probability (``old_logprobs=sampling``)."""

    def log_ratio(self) -> Tensor:
        """``log(pi / pi_old)``, clamped so that its exponential stays finite. ``[n]``."""
        return log_ratio(self.logprobs, self.old)

    def sums(self, x: Tensor) -> Tensor:
        """At each token, the sum of ``x`` over the tokens of its sequence. ``[n]``."""
        return row_sums(x, self.rows)

    def means(self, x: Tensor) -> Tensor:
        """At each token, the mean of ``x`` over the tokens of its sequence. ``[n]``."""
        return row_means(x, self.rows)

    def clipped(self, ratio: Tensor, low: float, high: float, dual: float | None) -> SurrogateLoss:
        """PPO's clipped loss of a ratio; see :func:`clipped_surrogate`."""
        loss = clipped_surrogate(ratio, self.advantages, low, high, dual)
        return SurrogateLoss(loss, *clip_regions(ratio.detach(), self.advantages, low, high))


class SamplerRatios:
    """Ratios rho = pi_old / pi_sampler of N sampled tokens and of their episodes.

    Args:
        old: ``[N]``, log-probabilities under the policy at the start of the update.
        sampling: ``[N]``, log-probabilities that the sampler recorded.
        episode_ids: ``[N]`` integers >= 0.
    """

    def __init__(self, old: Tensor, sampling: Tensor, episode_ids: Tensor) -> None:
        log_rho = log_ratio(old, sampling)
        self.rho = log_rho.exp()
        """``[N]``, rho of each token."""
        _, self._index, counts = episode_ids.unique(return_inverse=True, return_counts=True)
        self._zeros = log_rho.new_zeros(len(counts))
        total = self._zeros.index_add(0, self._index, log_rho)
        self.product = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[self._index]
        """``[N]``, product of rho over the token's episode."""
        self.geometric_mean = (total / counts).exp()[self._index]
        """``[N]``, geometric mean of rho over the token's episode."""

    def anywhere(self, chosen: Tensor) -> Tensor:
        """For each token, whether any token of the same episode is ``chosen``: ``[N]`` booleans."""
        counts = self._zeros.index_add(0, self._index, chosen.to(self._zeros.dtype))
        return counts[self._index] > 0

    def inside(
        self, weights: Tensor | float, ratios: Tensor, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        """``weights``, but 0 where ``ratios`` are outside low to high, and a mask of the zeros."""
        outside = (ratios < low) | (ratios > high)
        return (ratios.new_ones(ratios.shape) * weights).masked_fill(outside, 0.0), outside

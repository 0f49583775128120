"""What a surrogate is made of: the tokens of a micro-batch, and sums over their sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl.credit import losses
from rl.credit.plugin import SurrogateLoss


@dataclass(frozen=True, slots=True)
class Ratios:
    """The n sampled tokens of a micro-batch under two policies."""

    logprobs: Tensor
    """``[n]``, log pi; the gradient goes here."""
    old: Tensor
    """``[n]``, log pi_old."""
    advantages: Tensor
    """``[n]``."""
    rows: Tensor
    """``[n]`` integers >= 0; equal ones are tokens of one sequence, which is here as a whole where
    the surrogate is ``by_sequence``: an episode, or a role's part of it."""
    of_sampler: bool = False
    """Whether pi_old is what the sampler recorded (``old_logprobs=sampling``)."""

    def log_ratio(self) -> Tensor:
        """``log(pi / pi_old)``, clamped so that its exponential stays finite. ``[n]``."""
        return losses.log_ratio(self.logprobs, self.old)

    def sums(self, x: Tensor) -> Tensor:
        """At each token, the sum of ``x`` over the tokens of its sequence. ``[n]``."""
        return row_sums(x, self.rows)

    def means(self, x: Tensor) -> Tensor:
        """At each token, the mean of ``x`` over the tokens of its sequence. ``[n]``."""
        return row_means(x, self.rows)

    def clipped(self, ratio: Tensor, low: float, high: float, dual: float | None) -> SurrogateLoss:
        """PPO's clip of a ratio; :func:`rl.credit.losses.clipped_surrogate`."""
        loss = losses.clipped_surrogate(ratio, self.advantages, low, high, dual)
        return SurrogateLoss(loss, *losses.clip_regions(ratio.detach(), self.advantages, low, high))


def row_sums(x: Tensor, rows: Tensor) -> Tensor:
    """At each token, the sum of ``x`` over the tokens of its sequence. ``[n]``."""
    index = rows.unique(return_inverse=True)[1]
    sums = x.new_zeros(int(index.max()) + 1 if len(index) else 0)
    return sums.index_add(0, index, x)[index]


def row_means(x: Tensor, rows: Tensor) -> Tensor:
    """At each token, the mean of ``x`` over the tokens of its sequence. ``[n]``."""
    return row_sums(x, rows) / row_sums(torch.ones_like(x), rows)


def diverged(moved: Tensor, advantages: Tensor, rows: Tensor, most: float) -> Tensor:
    """Tokens with a negative advantage in sequences that the policy has moved away from. ``[n]``.

    Off-policy sequence masking (DeepSeek-V3.2, section 3.1).

    Args:
        moved: ``[n]``, log(pi / pi_sampler).
        advantages: ``[n]``.
        rows: ``[n]``, the sequence of each token.
        most: nats by which the mean of log(pi_sampler / pi) over a sequence may exceed 0.
    """
    return (advantages < 0) & (-row_means(moved.detach(), rows) > most)

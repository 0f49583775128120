"""What a policy's loss makes of ratio and advantage: one function for each ``surrogate``.

Shapes: ``[n]`` is the sampled tokens of a micro-batch; r is pi / pi_old of a token, A its
advantage, [.] what no gradient passes. Each is minimised, and tells which tokens a bound touched.
Where pi is pi_old, summed over sequences with the weights of ``seq-mean-token-mean``, all of them
have the same gradient.

=============== ============================================================== ====================
``clip``        -min(r A, clip(r, 1 - low, 1 + high) A)                         PPO, equation 7
``reinforce``   -A log pi                                                       Williams 1992
``cispo``       -[clip(r, 1 - low, 1 + high)] A log pi                          MiniMax-M1, eq. 4
``sapo``        -(4 / tau) sigmoid(tau (r - 1)) A                               SAPO, 2511.20347
``dppo-tv``     -[min(r, 20)] A log pi, while pi has not moved by more than     DPPO, as in verl
                low or high, in probability, to where A drives it
``dro``         -A log pi + (tau / 2) (log r)^2                                 DRO, 2405.19107
``mirror-...``  the same of a whole sequence: r is the product of its tokens'   Kimi k1.5, eq. 3
``oreal``       -A log pi where A > 0, -loss_coef r A where A < 0              OREAL, equation 13
``gspo``        ``clip`` with s, the geometric mean of a sequence's r           GSPO, equation 5
``gspo-token``  ``clip`` with [s] r / [r]                                       GSPO, equation 13
``gmpo``        -A times the geometric mean of r, each bounded in log space     GMPO, 2507.20673
=============== ============================================================== ====================
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl.credit.algorithm import Algorithm
from rl.credit.losses import clip_regions, clipped_surrogate, log_ratio

SAPO_TAU = (1.0, 1.05)
"""Temperatures of its gate, for A > 0 and for A < 0: a higher one closes sooner (section 3)."""
DPPO_MAX_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Surrogates:
    """The policy's loss at each token, and what its bounds did."""

    loss: Tensor
    """``[n]``."""
    below: Tensor
    """``[n]`` booleans: where the lower bound stops (of ``cispo``: bounds) the gradient."""
    above: Tensor
    """``[n]`` booleans: where the upper bound does."""


def surrogate(
    algorithm: Algorithm, logprobs: Tensor, old: Tensor, advantages: Tensor, rows: Tensor
) -> Surrogates:
    """The surrogate that ``algorithm`` names.

    Args:
        algorithm: the row of choices.
        logprobs: ``[n]``, log pi.
        old: ``[n]``, log pi_old.
        advantages: ``[n]``.
        rows: ``[n]`` integers >= 0; equal ones are tokens of one sequence, which is here as a
            whole: an episode, or a role's part of it.
    """
    low, high = algorithm.clip_low, algorithm.clip_high
    moved = log_ratio(logprobs, old)
    nowhere = torch.zeros_like(advantages, dtype=torch.bool)
    match algorithm.surrogate:
        case "reinforce":
            return Surrogates(-advantages * logprobs, nowhere, nowhere)
        case "cispo":
            ratio = moved.detach().exp()
            loss = -ratio.clamp(1 - low, 1 + high) * advantages * logprobs
            return Surrogates(loss, ratio < 1 - low, ratio > 1 + high)
        case "sapo":
            return Surrogates(soft_gate(moved.exp(), advantages), nowhere, nowhere)
        case "dro":
            loss = -advantages * logprobs + algorithm.tau / 2 * moved.square()
            return Surrogates(loss, nowhere, nowhere)
        case "mirror-descent":
            # Over a sequence's tokens the second part adds up to the square of its log-ratio.
            drawn_back = algorithm.tau / 2 * row_sums(moved, rows) * moved
            return Surrogates(-advantages * logprobs + drawn_back, nowhere, nowhere)
        case "oreal":
            driven_off = algorithm.loss_coef * moved.exp()
            loss = -advantages * torch.where(advantages > 0, logprobs, driven_off)
            return Surrogates(loss, nowhere, nowhere)
        case "dppo-tv":
            return _within_total_variation(algorithm, logprobs, old, advantages)
        case "gmpo":
            return _geometric_mean(algorithm, moved, advantages, rows)
        case "gspo":
            ratio = row_means(moved, rows).exp()
        case "gspo-token":
            ratio = (row_means(moved, rows).detach() + moved - moved.detach()).exp()
        case _:
            ratio = moved.exp()
    loss = clipped_surrogate(ratio, advantages, low, high, algorithm.negative_bound)
    return Surrogates(loss, *clip_regions(ratio.detach(), advantages, low, high))


def soft_gate(ratio: Tensor, advantages: Tensor) -> Tensor:
    """``-(4 / tau) sigmoid(tau (r - 1)) A``: a gate that closes gradually around r = 1. ``[n]``."""
    # Of two numbers torch.where would make float32.
    for_gain, for_loss = (torch.full_like(advantages, tau) for tau in SAPO_TAU)
    tau = torch.where(advantages > 0, for_gain, for_loss)
    gated: Tensor = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages
    return gated


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


def _within_total_variation(
    algorithm: Algorithm, logprobs: Tensor, old: Tensor, advantages: Tensor
) -> Surrogates:
    change = logprobs.detach().exp() - old.exp()
    above = (change > algorithm.clip_high) & (advantages > 0)
    below = (change < -algorithm.clip_low) & (advantages < 0)
    weight = log_ratio(logprobs, old).detach().exp().clamp(max=DPPO_MAX_RATIO)
    loss = -weight * advantages * logprobs
    return Surrogates(torch.where(above | below, 0.0, loss), below, above)


def _geometric_mean(
    algorithm: Algorithm, moved: Tensor, advantages: Tensor, rows: Tensor
) -> Surrogates:
    low, high, sign = algorithm.clip_low, algorithm.clip_high, advantages.sign()
    bounded = sign * torch.minimum(sign * moved, sign * moved.clamp(-low, high))
    # Where A is 0 its sign is no direction; nothing is learned there either.
    bounded = torch.where(sign == 0, moved.detach(), bounded)
    now = moved.detach()
    below, above = (now < -low) & (sign < 0), (now > high) & (sign > 0)
    return Surrogates(-advantages * row_means(bounded, rows).exp(), below, above)

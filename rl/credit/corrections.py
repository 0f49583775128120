"""Importance weights for the mismatch of sampler and learner.

The sampler may run older weights or round differently. rho is a token's probability under the
policy at the start of the update, divided by the probability with which it was sampled. The weights
multiply the surrogate only; advantages and denominators do not change.

================ ============================================================================
``tis``          min(rho, high) of each token: truncated importance sampling
``icepop``       rho of each token where it lies from low to high, else 0
``token-mask``   1 for each token whose rho lies from low to high, else 0; SkyRL's token mask
``outlier-mask`` 1 where every rho of an episode does, else 0; SkyRL's outlier token mask
``seq-tis``      min(product of an episode's rho, high); TRL's ``sequence_truncate``
``seq-icepop``   that product where it lies from low to high, else 0; TRL's ``sequence_mask``
``seq-mask``     1 where that product lies from low to high, else 0; SkyRL's ``product`` mask
``geo-mask``     the same of the geometric mean of an episode's rho; SkyRL's ``geometric`` mask
================ ============================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.credit.algorithm import Algorithm
from rl.credit.losses import MAX_LOG_RATIO, log_ratio


def correction_weights(
    algorithm: Algorithm, old: Tensor, sampling: Tensor, episode_ids: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The weight of each token's loss, and what the ratios were like before any bound.

    Args:
        algorithm: its ``correction``.
        old: ``[N]``, log-probabilities under the policy as the update starts.
        sampling: ``[N]``, those that the sampler recorded.
        episode_ids: ``[N]`` integers >= 0.

    Returns:
        ``[N]``, and the metrics ``correction/ratio_mean``, ``_max``, ``effective_samples`` (of N
        tokens, (sum rho)^2 / (N sum rho^2)) and ``bounded`` (the share that a bound touched).
    """
    low, high = algorithm.correction.low, algorithm.correction.high
    moved = log_ratio(old, sampling)
    rho = moved.exp()
    _, index, counts = episode_ids.unique(return_inverse=True, return_counts=True)
    total = moved.new_zeros(len(counts)).index_add(0, index, moved)
    product = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[index]
    mean = (total / counts).exp()[index]
    outliers = rho.new_zeros(len(counts)).index_add(
        0, index, _outside(rho, low, high).to(rho.dtype)
    )
    ones, nowhere = torch.ones_like(rho), torch.zeros_like(rho, dtype=torch.bool)
    match algorithm.correction.kind:
        case "tis":
            weights, bounded = rho.clamp(max=high), rho > high
        case "icepop":
            weights, bounded = rho, _outside(rho, low, high)
        case "token-mask":
            weights, bounded = ones, _outside(rho, low, high)
        case "outlier-mask":
            weights, bounded = ones, outliers[index] > 0
        case "seq-tis":
            weights, bounded = product.clamp(max=high), product > high
        case "seq-icepop":
            weights, bounded = product, _outside(product, low, high)
        case "seq-mask":
            weights, bounded = ones, _outside(product, low, high)
        case "geo-mask":
            weights, bounded = ones, _outside(mean, low, high)
        case _:
            weights, bounded = ones, nowhere
    if algorithm.correction.kind not in ("tis", "seq-tis"):
        weights = weights.masked_fill(bounded, 0.0)
    return weights, {
        "correction/ratio_mean": rho.mean().item(),
        "correction/ratio_max": rho.max().item(),
        "correction/effective_samples": (rho.sum().square() / rho.square().mean()).item()
        / len(rho) ** 2,
        "correction/bounded": bounded.double().mean().item(),
    }


def _outside(x: Tensor, low: float, high: float) -> Tensor:
    """Where a ratio lies below or above its bounds."""
    return (x < low) | (x > high)

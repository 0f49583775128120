"""Corrections for tokens that the learner's weights would not have sampled quite so.

The sampler may run older weights, or round otherwise. Its tokens are then weighted by rho, the
probability under the policy as the update starts over that under which they were sampled. The
weights enter the loss alone: advantages and denominators are what they are without.

=============== ============================================================================
``tis``         min(rho, high) of each token: truncated importance sampling
``icepop``      rho of each token where it lies from low to high, else 0
``seq-tis``     min(product of an episode's rho, high)
``seq-icepop``  that product where it lies from low to high, else 0; TRL's ``sequence_mask``
``seq-mask``    1 where the product of an episode's rho is at most high, else 0
``geo-mask``    1 where the geometric mean of an episode's rho lies from low to high, else 0
=============== ============================================================================
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
        algorithm: its ``correction`` and the bounds of it.
        old: ``[N]``, log-probabilities under the policy as the update starts.
        sampling: ``[N]``, those that the sampler recorded.
        episode_ids: ``[N]`` integers >= 0.

    Returns:
        ``[N]``, and the metrics ``correction/ratio_mean``, ``_max``, ``effective_samples`` (of N
        tokens, (sum rho)^2 / (N sum rho^2)) and ``bounded`` (the share that a bound touched).
    """
    low, high = algorithm.correction_low, algorithm.correction_high
    moved = log_ratio(old, sampling)
    rho = moved.exp()
    _, index, counts = episode_ids.unique(return_inverse=True, return_counts=True)
    total = moved.new_zeros(len(counts)).index_add(0, index, moved)
    product = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[index]
    mean = (total / counts).exp()[index]
    match algorithm.correction:
        case "tis":
            weights = rho.clamp(max=high)
            bounded = rho > high
        case "icepop":
            bounded = (rho < low) | (rho > high)
            weights = rho.masked_fill(bounded, 0.0)
        case "seq-tis":
            weights = product.clamp(max=high)
            bounded = product > high
        case "seq-icepop":
            bounded = (product < low) | (product > high)
            weights = product.masked_fill(bounded, 0.0)
        case "seq-mask":
            bounded = product > high
            weights = (~bounded).to(rho.dtype)
        case "geo-mask":
            bounded = (mean < low) | (mean > high)
            weights = (~bounded).to(rho.dtype)
        case _:
            weights, bounded = torch.ones_like(rho), torch.zeros_like(rho, dtype=torch.bool)
    return weights, {
        "correction/ratio_mean": rho.mean().item(),
        "correction/ratio_max": rho.max().item(),
        "correction/effective_samples": (rho.sum().square() / rho.square().mean()).item()
        / len(rho) ** 2,
        "correction/bounded": bounded.double().mean().item(),
    }

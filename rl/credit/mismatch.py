"""How far the learner's probabilities of sampled tokens are from the sampler's, in numbers.

They differ where the kernels do, where the weights are others (stale tokens, an update that did not
arrive), and where the sampler's log-probabilities are not those that it sampled by. With ``r`` the
ratio of the learner's probability to the sampler's, and tokens drawn from the sampler, the
divergence KL(sampler || learner) is the mean of k1 = -log r, and that of k3 = r - 1 - log r, which
is never negative (Schulman, "Approximating KL divergence", 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NEAR = (0.9, 1.1)
"""Ratios inside are those of kernels that round otherwise."""


def mismatch(log_ratios: Tensor, ages: Tensor) -> dict[str, float]:
    """The metrics of an update's sampled tokens, with the weights that it began with.

    Args:
        log_ratios: ``[n]``, the learner's log-probability less the sampler's.
        ages: ``[n]``, how many versions older the weights were that sampled each.
    """
    logs = log_ratios.double().cpu()
    ratios = logs.exp()
    metrics = {
        "sampling/logp_difference_mean": logs.abs().mean().item(),
        "sampling/logp_difference_max": logs.abs().max().item(),
        "sampling/k1": -logs.mean().item(),
        "sampling/k3": (logs.expm1() - logs).mean().item(),
        "sampling/ratio_outside": ((ratios < NEAR[0]) | (ratios > NEAR[1])).double().mean().item(),
        "sampling/effective_share": effective_share(logs),
    }
    ages = ages.cpu()
    if not ages.any():
        return metrics
    for age in ages.unique().tolist():
        own = logs[ages == age]
        metrics[f"staleness/share/{age}"] = len(own) / len(logs)
        metrics[f"staleness/ratio_mean/{age}"] = own.exp().mean().item()
        metrics[f"staleness/effective_share/{age}"] = effective_share(own)
    return metrics


def effective_share(log_ratios: Tensor) -> float:
    """The effective sample size of weighted tokens, as a share of their number ``n``.

    ``(sum w)^2 / (n sum w^2)`` (Kish 1965, Survey Sampling, section 11.7): 1 where all ratios ``w``
    are equal.
    """
    first, second = log_ratios.logsumexp(0), (2 * log_ratios).logsumexp(0)
    return torch.exp(2 * first - second).item() / len(log_ratios) if len(log_ratios) else math.nan

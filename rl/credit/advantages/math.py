"""Formulas of advantages: baselines of groups, sums over time, GAE, whitening.

Shapes: ``[N]`` one entry per episode or per turn, ``[B, T]`` one row per episode. ``loss_mask`` is
1 at sampled tokens; values at other positions (observations, padding, even NaN) are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl.credit.options import Baseline, Std
from rl.rollout.trajectory import EQUAL

GROUP_EPSILON = 1e-6
"""Small number that is added to the divisor: a group's standard deviation or mean."""
WHITEN_EPSILON = 1e-8
"""Small number that is added to the variance when whitening."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages relative to groups, and counts of these groups."""

    advantages: Tensor
    """``[N]``. The advantage is 0 for members that failed and for members of groups of one."""
    num_groups: int
    """Number of groups with at least one finished member."""
    num_singletons: int
    """Number of groups with exactly one finished member, which has nothing to be compared with."""
    num_constant: int
    """Number of groups of two or more whose rewards are all equal, so that they give no
    gradient."""


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    std: Std = "unbiased",
    finished: Tensor | None = None,
    *,
    baseline: Baseline = "mean",
    lengths: Tensor | None = None,
) -> GroupAdvantages:
    """Rewards minus their group's baseline, divided by the group's deviation or mean plus 1e-6.

    Baseline ``mean`` is the outcome supervision of GRPO (DeepSeekMath, section 4.1.2). For the
    rewards of turns, it is the normalisation of process supervision (DeepSeekMath, section 4.1.3).
    ``std="none"`` is Dr. GRPO (Understanding R1-Zero-Like Training, section 3.2), ``std="mean"`` is
    MaxRL. ``leave-one-out`` is the mean of the *other* members, RLOO (Ahmadian et al. 2024,
    equation 8): n / (n - 1) times the centred reward. ``length-weighted`` is the mean weighted by
    lengths, OPO (Hao et al. 2025, equation 8).

    Args:
        rewards: ``[N]``.
        group_ids: ``[N]`` integers >= 0; equal ones form a group.
        std: the divisor.
        finished: ``[N]``, False for failed episodes, which enter no baseline. If None, all have
            finished.
        baseline: what to subtract from the rewards.
        lengths: ``[N]``, number of sampled tokens; required for ``length-weighted``.

    Raises:
        ValueError: ``lengths`` is missing, or ``std="mean"`` and a reward is negative.
    """
    if finished is None:
        finished = torch.ones_like(group_ids, dtype=torch.bool)
    kept = rewards[finished]
    _, index, counts = group_ids[finished].unique(return_inverse=True, return_counts=True)
    size = counts.to(rewards.dtype)
    zeros = torch.zeros_like(size)
    lowest = zeros.scatter_reduce(0, index, kept, "amin", include_self=False)
    # Relative to the group's lowest reward, a constant group is exactly 0, without rounding.
    above = kept - lowest[index]
    highest_above = zeros.scatter_reduce(0, index, above, "amax", include_self=False)
    scale = zeros.scatter_reduce(0, index, kept.abs(), "amax", include_self=False)
    constant = highest_above <= EQUAL * scale
    above = above.masked_fill(constant[index], 0.0)
    centred = above - _baseline(above, index, size, baseline, lengths, finished)[index]
    if baseline == "leave-one-out":
        centred = centred * (size / (size - 1).clamp_min(1))[index]
    if std == "mean":
        centred = centred / (_means_of(kept, index, size) + GROUP_EPSILON)[index]
    elif std != "none":
        degrees = (size - 1).clamp_min(1) if std == "unbiased" else size
        variance = zeros.index_add(0, index, centred.square()) / degrees
        centred = centred / (variance.sqrt() + GROUP_EPSILON)[index]
    advantages = torch.zeros_like(rewards)
    advantages[finished] = centred
    return GroupAdvantages(
        advantages=advantages,
        num_groups=len(counts),
        num_singletons=int((counts == 1).sum()),
        num_constant=int(((counts > 1) & constant).sum()),
    )


def _means_of(rewards: Tensor, index: Tensor, size: Tensor) -> Tensor:
    if (rewards < 0).any():
        raise ValueError(
            f"std=mean divides by a group's mean: rewards must be >= 0, one is {rewards.min():g}"
        )
    return torch.zeros_like(size).index_add(0, index, rewards) / size


def _baseline(
    rewards: Tensor,
    index: Tensor,
    size: Tensor,
    baseline: Baseline,
    lengths: Tensor | None,
    finished: Tensor,
) -> Tensor:
    """The baseline of each group. ``index`` holds the number of each reward's group."""
    zeros = torch.zeros_like(size)
    if baseline != "length-weighted":
        return zeros.index_add(0, index, rewards) / size
    if lengths is None:
        raise ValueError("baseline 'length-weighted' needs lengths: give them")
    length = lengths[finished].to(rewards.dtype)
    # A group without a token has no weights, and nothing to train either.
    total = zeros.index_add(0, index, length).clamp_min(1)
    return zeros.index_add(0, index, length * rewards) / total


def dense_advantages(rewards: Tensor, loss_mask: Tensor, group_ids: Tensor) -> Tensor:
    """Token rewards minus the mean of the other members' mean token rewards.

    The formula is ``r n / (n - 1) - sum_j mean_j / (n - 1)`` over the n members that have a token:
    leave-one-out for rewards of tokens (PRIME, arXiv 2502.01456, equation 5, as in its code). In a
    group with one member the result is 0.

    Args:
        rewards: ``[B, T]``.
        loss_mask: ``[B, T]``.
        group_ids: ``[B]`` integers >= 0.

    Returns:
        ``[B, T]``, 0 where loss_mask is 0.
    """
    mask = loss_mask.bool()
    lengths = mask.sum(1)
    kept = torch.where(mask, rewards, 0.0)
    index = group_ids.unique(return_inverse=True)[1]
    zeros = rewards.new_zeros(int(index.max()) + 1 if len(index) else 0)
    size = zeros.index_add(0, index, (lengths > 0).to(rewards.dtype))
    means = zeros.index_add(0, index, kept.sum(1) / lengths.clamp_min(1))
    others = (size - 1).clamp_min(1)
    above = kept * (size / others)[index][:, None] - (means / others)[index][:, None]
    return torch.where(mask & (size > 1)[index][:, None], above, 0.0)


def suffix_sums(x: Tensor, loss_mask: Tensor, decay: float = 1.0) -> Tensor:
    """Discounted sums to the end: ``y_t = x_t + decay * y_next`` over positions with loss_mask 1.

    For process supervision (DeepSeekMath, section 4.1.3), ``x`` has the normalised reward of each
    turn at the turn's last token, and decay is 1.

    Args:
        x: ``[B, T]``.
        loss_mask: ``[B, T]``.
        decay: discount per sampled token, from 0 to 1.

    Returns:
        ``[B, T]``, 0 where loss_mask is 0.
    """
    columns = _columns(loss_mask)
    return _spread(_scan(_compact(x, columns), decay), columns)


def gae(
    rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and returns over sampled tokens only.

    ``delta_t = r_t + gamma V_next - V_t`` and ``A_t = delta_t + gamma lam A_next`` (Schulman et al.
    2016, equation 16), where next is the next *sampled* token. Observations belong to transitions
    and are no steps of the policy, so their values are never read. The value after the last token
    is 0. ``return_t = A_t + V_t``.

    Args:
        rewards: ``[B, T]``; a turn's reward is at the last sampled token of the turn.
        values: ``[B, T]``, the value of the state before token t.
        loss_mask: ``[B, T]``.
        gamma: discount per sampled token.
        lam: from 0 (one-step) to 1 (Monte Carlo), one number or one for each row (``[B, 1]``).

    Returns:
        Advantages and returns, both ``[B, T]``, 0 where loss_mask is 0.
    """
    columns = _columns(loss_mask)
    reward, value = _compact(rewards, columns), _compact(values, columns)
    # After a row's last sampled token the compact rows have zeros: the terminal value.
    next_value = torch.nn.functional.pad(value[:, 1:], (0, 1))
    advantage = _scan(reward + gamma * next_value - value, gamma * lam)
    return _spread(advantage, columns), _spread(advantage + value, columns)


def adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """Lambda for episodes of length L: ``1 - 1 / (alpha L)``, at least 0.

    This is length-adaptive GAE (VAPO, arXiv 2504.05118, section 4.2), where alpha is 0.05. Longer
    episodes are closer to Monte Carlo.

    Args:
        lengths: number of sampled tokens, any shape.
        alpha: above 0.
    """
    return (1 - 1 / (alpha * lengths.clamp_min(1).double())).clamp_min(0)


def whiten(x: Tensor, loss_mask: Tensor) -> Tensor:
    """Shift and scale to mean 0 and unbiased variance 1 over the positions with loss_mask 1.

    A single position becomes 0.

    Args:
        x: any shape.
        loss_mask: the shape of ``x``.

    Returns:
        The shape of ``x``, 0 where loss_mask is 0.
    """
    mask = loss_mask.bool()
    kept = x[mask]
    centred = kept - kept.sum() / max(kept.numel(), 1)
    variance = centred.square().sum() / max(kept.numel() - 1, 1)
    whitened = centred * torch.rsqrt(variance + WHITEN_EPSILON)
    return torch.zeros_like(x).masked_scatter(mask, whitened)


def _columns(loss_mask: Tensor) -> Tensor:
    """The column of each position after sampled tokens have moved to the left.

    All other positions share the last column.
    """
    mask = loss_mask.bool()
    return torch.where(mask, mask.cumsum(1) - 1, mask.shape[1])


def _compact(x: Tensor, columns: Tensor) -> Tensor:
    """Each row's sampled tokens moved to its left end, followed by zeros."""
    return x.new_zeros(x.shape[0], x.shape[1] + 1).scatter(1, columns, x)[:, :-1]


def _spread(compact: Tensor, columns: Tensor) -> Tensor:
    """The inverse of :func:`_compact`. Positions that were not sampled are 0."""
    return torch.nn.functional.pad(compact, (0, 1)).gather(1, columns)


def _scan(x: Tensor, decay: float | Tensor) -> Tensor:
    """``y_t = x_t + decay * y_{t+1}``, by doubling: after k rounds, y_t covers 2^k positions."""
    y, reach, width = x.clone(), 1, x.shape[1]
    while reach < width:
        y[:, :-reach] += decay**reach * y[:, reach:].clone()
        reach *= 2
    return y

"""From an update's rewards to the advantage of each of its tokens, as the algorithm chooses."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.credit.advantages import GroupAdvantages, gae, group_advantages, suffix_sums, whiten
from rl.credit.algorithms import Algorithm
from rl.credit.losses import kl_penalty
from rl.learner.batch import Batch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of an update's N sampled tokens, all float64 on the CPU."""

    advantages: Tensor
    """``[N]``."""
    returns: Tensor | None
    """``[N]``, what values are trained towards; None without values."""
    metrics: dict[str, float]


def assign_credit(
    algorithm: Algorithm,
    batch: Batch,
    values: Tensor | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
) -> Credit:
    """The advantage of each token of ``batch``.

    Args:
        algorithm: the row of choices.
        batch: the episodes of the update.
        values: ``[N]`` float64, needed for gae.
        old_logprobs: ``[N]`` float64, needed for a divergence in the reward.
        ref_logprobs: ``[N]`` float64, likewise.
    """
    if algorithm.advantage == "gae":
        assert values is not None
        credit = _from_values(algorithm, batch, values, old_logprobs, ref_logprobs)
    elif algorithm.advantage == "group-outcome":
        credit = _from_outcomes(algorithm, batch)
    elif algorithm.advantage == "reward-to-go":
        credit = _to_go(algorithm, batch)
    else:
        credit = _from_turns(algorithm, batch)
    if not algorithm.whiten:
        return credit
    advantages = whiten(credit.advantages, torch.ones_like(credit.advantages))
    return Credit(advantages, credit.returns, credit.metrics)


def _from_outcomes(algorithm: Algorithm, batch: Batch) -> Credit:
    lengths = batch.episode_ids.bincount(minlength=len(batch.rewards))
    grouped = group_advantages(
        batch.rewards,
        batch.group_ids,
        algorithm.std,
        baseline=algorithm.baseline,
        lengths=lengths,
    )
    return Credit(grouped.advantages[batch.episode_ids], None, _group_metrics(grouped, "episode"))


def _to_go(algorithm: Algorithm, batch: Batch) -> Credit:
    rewards, loss_mask = batch.per_episode(_at_turn_ends(batch, batch.turn_rewards))
    return Credit(suffix_sums(rewards, loss_mask, algorithm.gamma)[loss_mask], None, {})


def _from_turns(algorithm: Algorithm, batch: Batch) -> Credit:
    groups = batch.group_ids[batch.episode_ids[batch.turn_ends]]
    grouped = group_advantages(batch.turn_rewards, groups, algorithm.std)
    steps, loss_mask = batch.per_episode(_at_turn_ends(batch, grouped.advantages))
    advantages = suffix_sums(steps, loss_mask)[loss_mask]
    return Credit(advantages, None, _group_metrics(grouped, "turn"))


def _group_metrics(grouped: GroupAdvantages, member: str) -> dict[str, float]:
    """What the groups were like; says so when some had nothing to compare."""
    singletons, groups = grouped.num_singletons, grouped.num_groups
    if singletons:
        logger.warning(
            "%d of %d groups have one finished %s: its advantage is 0, nothing is learnt from it",
            singletons,
            groups,
            member,
        )
    return {
        "frac_reward_zero_std": (grouped.num_constant + singletons) / max(groups, 1),
        "groups_of_one": float(singletons),
    }


def _from_values(
    algorithm: Algorithm,
    batch: Batch,
    values: Tensor,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
) -> Credit:
    rewards = _at_turn_ends(batch, batch.turn_rewards)
    metrics = {}
    if algorithm.kl_coef and algorithm.kl_place == "reward":
        assert old_logprobs is not None and ref_logprobs is not None
        kl = kl_penalty(old_logprobs, ref_logprobs, algorithm.kl_estimator)
        rewards = rewards - algorithm.kl_coef * kl
        metrics["kl"] = kl.mean().item()
    dense, loss_mask = batch.per_episode(rewards)
    advantages, returns = (
        x[loss_mask]
        for x in gae(dense, batch.per_episode(values)[0], loss_mask, algorithm.gamma, algorithm.lam)
    )
    spread = (returns - returns.mean()).square().sum()
    residual = returns - values
    unexplained = (residual - residual.mean()).square().sum()
    metrics["explained_variance"] = (1 - unexplained / spread).item() if spread > 0 else 0.0
    return Credit(advantages, returns, metrics)


def _at_turn_ends(batch: Batch, per_turn: Tensor) -> Tensor:
    """Turn numbers ``[K]`` as token numbers ``[N]``, each at the last sampled token of its turn."""
    return per_turn.new_zeros(batch.num_tokens).index_add(0, batch.turn_ends, per_turn)

"""From an update's rewards to the advantage of each of its tokens, as the algorithm chooses."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.credit.advantages import (
    GROUP_EPSILON,
    GroupAdvantages,
    adaptive_lambda,
    dense_advantages,
    gae,
    group_advantages,
    suffix_sums,
    whiten,
)
from rl.credit.algorithm import Algorithm
from rl.credit.batch import Batch
from rl.credit.losses import kl_penalty
from rl.errors import RunFailure

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
    token_scores: Tensor | None = None,
) -> Credit:
    """The advantage of each token of ``batch``.

    Args:
        algorithm: the row of choices.
        batch: the episodes of the update.
        values: ``[N]`` float64, needed where there is a value head.
        old_logprobs: ``[N]`` float64, needed for a divergence in the reward.
        ref_logprobs: ``[N]`` float64, likewise.
        token_scores: ``[N]`` float64, needed where a model says what tokens are worth.

    Raises:
        ValueError: the row needs values of turns, and one has none.
        RunFailure: it divides by a mean of returns, and one is negative.
    """
    if algorithm.std == "mean" and (batch.rewards < 0).any():
        raise RunFailure(
            f"algo.std=mean divides by a group's mean, so what each role of an episode earns must "
            f"be >= 0; one earned {batch.rewards.min():g}: choose another algo.std, or rewards "
            f"without penalties"
        )
    if algorithm.uses_values:
        assert values is not None
        credit = _from_values(algorithm, batch, values, old_logprobs, ref_logprobs)
    elif algorithm.advantage == "group-outcome":
        credit = _from_outcomes(algorithm, batch, token_scores)
    elif algorithm.advantage == "batch-outcome":
        grouped = group_advantages(batch.rewards, torch.zeros_like(batch.group_ids), algorithm.std)
        metrics = _group_metrics(grouped, "episode")
        credit = Credit(grouped.advantages[batch.episode_ids], None, metrics)
    elif algorithm.advantage == "group-dense":
        assert token_scores is not None
        credit = _dense(algorithm, batch, token_scores)
    elif algorithm.advantage == "group-in-group":
        credit = _from_anchors(algorithm, batch)
    elif algorithm.advantage == "vine":
        credit = _from_trials(algorithm, batch)
    elif algorithm.advantage == "reward-to-go":
        credit = _to_go(algorithm, batch)
    else:
        credit = _from_turns(algorithm, batch)
    if not algorithm.whiten:
        return credit
    advantages = whiten(credit.advantages, torch.ones_like(credit.advantages))
    return Credit(advantages, credit.returns, credit.metrics)


def _from_outcomes(algorithm: Algorithm, batch: Batch, scores: Tensor | None) -> Credit:
    lengths = batch.episode_ids.bincount(minlength=len(batch.rewards))
    grouped = group_advantages(
        batch.rewards,
        batch.group_ids,
        algorithm.std,
        baseline=algorithm.baseline,
        lengths=lengths,
    )
    advantages = grouped.advantages[batch.episode_ids]
    if algorithm.token_rewards == "head":
        assert scores is not None
        advantages = advantages * _belief(batch, advantages, scores)
    return Credit(advantages, None, _group_metrics(grouped, "episode"))


def _belief(batch: Batch, advantages: Tensor, scores: Tensor) -> Tensor:
    """What a token's advantage weighs: how far scores up to it bear the outcome out.

    ``max(2 sigmoid(w) - 1, 0)`` of right episodes and ``max(1 - 2 sigmoid(w), 0)`` of wrong ones, w
    being the mean score up to the token (OREAL, section 3.3, as in its code).
    """
    rows, mask = batch.per_episode(scores)
    so_far = (rows.cumsum(1) / mask.cumsum(1).clamp_min(1))[mask]
    belief = 2 * torch.sigmoid(so_far) - 1
    return torch.where(advantages > 0, belief, -belief).clamp_min(0)


def _dense(algorithm: Algorithm, batch: Batch, scores: Tensor) -> Credit:
    """Of returns and of token scores, each leave-one-out, the sum of what follows (PRIME).

    The scores are divided by the largest sum of what follows a token, over the batch.
    """
    grouped = group_advantages(batch.rewards, batch.group_ids, "none", baseline="leave-one-out")
    rows, mask = batch.per_episode(scores)
    rows = rows / (suffix_sums(rows, mask).abs().max() + GROUP_EPSILON)
    dense = suffix_sums(dense_advantages(rows, mask, batch.group_ids), mask)[mask]
    advantages = grouped.advantages[batch.episode_ids] + algorithm.token_coef * dense
    return Credit(advantages, None, _group_metrics(grouped, "episode"))


def _to_go(algorithm: Algorithm, batch: Batch) -> Credit:
    rewards, loss_mask = batch.per_episode(_at_turn_ends(batch, batch.turn_rewards))
    return Credit(suffix_sums(rewards, loss_mask, algorithm.gamma)[loss_mask], None, {})


def _from_turns(algorithm: Algorithm, batch: Batch) -> Credit:
    groups = batch.group_ids[batch.episode_ids[batch.turn_ends]]
    grouped = group_advantages(batch.turn_rewards, groups, algorithm.std)
    steps, loss_mask = batch.per_episode(_at_turn_ends(batch, grouped.advantages))
    advantages = suffix_sums(steps, loss_mask)[loss_mask]
    return Credit(advantages, None, _group_metrics(grouped, "turn"))


def _from_anchors(algorithm: Algorithm, batch: Batch) -> Credit:
    """A = A^E + w A^S (GiGPO, section 4): of the episode, and of the turn among its like."""
    episodes = group_advantages(batch.rewards, batch.group_ids, algorithm.std)
    owners, rewards = batch.episode_ids[batch.turn_ends], batch.turn_rewards
    to_go, _ = _in_rows(owners, rewards, torch.zeros_like(rewards), algorithm.gamma_turn, 1.0)
    steps = group_advantages(to_go, batch.turn_anchors, algorithm.std)
    advantages = episodes.advantages[owners] + algorithm.turn_weight * steps.advantages
    metrics = _group_metrics(episodes, "episode")
    metrics["frac_turns_alone"] = steps.num_singletons / len(owners)
    return Credit(advantages[_turns(batch)], None, metrics)


def _from_trials(algorithm: Algorithm, batch: Batch) -> Credit:
    """A = r + gamma_turn V_next turn - V (VinePPO, section 4), for all tokens of a turn."""
    values, ends = batch.turn_values, batch.turn_ends
    if values.isnan().any():
        raise ValueError(
            f"{int(values.isnan().sum())} of {len(values)} turns have no value: advantage=vine "
            f"needs episodes of a Collector with vine=Vine(rollouts=...)"
        )
    owners, gamma = batch.episode_ids[ends], algorithm.gamma_turn
    advantages, _ = _in_rows(owners, batch.turn_rewards, values, gamma, lam=0.0)
    return Credit(advantages[_turns(batch)], None, {"vine/value": values.mean().item()})


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
    if algorithm.whiten_rewards:
        # Without a shift, as in lm-human-preferences: it would pay for long episodes.
        rewards = whiten(rewards, torch.ones_like(rewards)) + rewards.mean()
    estimate = {"gae": _over_tokens, "turn-gae": _over_turns, "bilevel-gae": _over_both}
    advantages, returns = estimate[algorithm.advantage](algorithm, batch, rewards, values)
    spread = (returns - returns.mean()).square().sum()
    residual = returns - values
    unexplained = (residual - residual.mean()).square().sum()
    metrics["explained_variance"] = (1 - unexplained / spread).item() if spread > 0 else 0.0
    return Credit(advantages, returns, metrics)


def _over_tokens(
    algorithm: Algorithm, batch: Batch, rewards: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns ``[N]``; an episode is a row of tokens."""
    lam: float | Tensor = algorithm.lam
    if algorithm.lam_alpha is not None:
        lengths = batch.episode_ids.bincount(minlength=len(batch.rewards))
        lam = adaptive_lambda(lengths, algorithm.lam_alpha)[:, None]
    return _in_rows(batch.episode_ids, rewards, values, algorithm.gamma, lam)


def _over_turns(
    algorithm: Algorithm, batch: Batch, rewards: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns ``[N]``, equal within a turn; an episode is a row of turns.

    A turn's value is that of the state in which its first token was sampled.
    """
    turns, ends = _turns(batch), batch.turn_ends
    starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    paid = rewards.new_zeros(len(ends)).index_add(0, turns, rewards)
    owners, gamma = batch.episode_ids[ends], algorithm.gamma_turn
    advantages, returns = _in_rows(owners, paid, values[starts], gamma, algorithm.lam)
    return advantages[turns], returns[turns]


def _over_both(
    algorithm: Algorithm, batch: Batch, rewards: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns ``[N]``: over the ends of turns, then over the tokens of each.

    A turn's return is the reward at its end, and nothing beyond it is bootstrapped (VAGEN's
    bi-level estimator).
    """
    turns, ends = _turns(batch), batch.turn_ends
    owners = batch.episode_ids[ends]
    # What a divergence takes from a turn's other tokens is not its end's: it is between the end
    # before and this one, and within the turn it is paid where it stands.
    within = rewards.index_fill(0, ends, 0.0)
    paid = rewards[ends]
    before = paid.new_zeros(len(ends)).index_add(0, turns, within)[1:]
    paid[:-1] += torch.where(owners[1:] == owners[:-1], before, 0.0)
    _, earned = _in_rows(owners, paid, values[ends], algorithm.gamma_turn, algorithm.lam)
    inner = within.index_copy(0, ends, earned)
    return _in_rows(turns, inner, values, algorithm.gamma, algorithm.lam)


def _turns(batch: Batch) -> Tensor:
    """The turn of each token ``[N]``, from 0 to K - 1."""
    return torch.searchsorted(batch.turn_ends, torch.arange(batch.num_tokens))


def _in_rows(
    owners: Tensor, rewards: Tensor, values: Tensor, gamma: float, lam: float | Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`gae` of entries ``[n]`` that are ordered by their row, ``owners``."""
    lengths = owners.bincount(minlength=len(lam) if isinstance(lam, Tensor) else 0)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    paid, valued = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in (rewards, values))
    advantages, returns = gae(paid, valued, mask, gamma, lam)
    return advantages[mask], returns[mask]


def _at_turn_ends(batch: Batch, per_turn: Tensor) -> Tensor:
    """Turn numbers ``[K]`` as token numbers ``[N]``, each at the last sampled token of its turn."""
    return per_turn.new_zeros(batch.num_tokens).index_add(0, batch.turn_ends, per_turn)

"""Credit assignment: from an update's rewards to the advantage of each sampled token."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rl.credit.advantage_math import (
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
from rl.credit.corrections import correction_weights
from rl.credit.losses import FixedTerms, kl_penalty
from rl.credit.options import Baseline, Std
from rl.credit.plugin import Credit
from rl.errors import RunFailure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """Inputs of an advantage: an update's M episodes, K turns and N sampled tokens."""

    batch: Batch
    """Rewards, turns and groups, on the CPU."""
    values: Tensor | None = None
    """``[N]`` float64, the value of the state before each token (``needs_values``)."""
    token_scores: Tensor | None = None
    """``[N]`` float64, scores of the token reward model (``token_rewards.kind``)."""
    penalties: Tensor | None = None
    """``[N]`` float64, subtracted from each token's reward (``kl.place=reward``)."""

    def compare(
        self, rewards: Tensor, groups: Tensor, std: Std, baseline: Baseline = "mean"
    ) -> GroupAdvantages:
        """Advantages of rewards ``[n]`` relative to their groups ``[n]``, of episodes or turns."""
        lengths = self.lengths() if baseline == "length-weighted" else None
        return group_advantages(rewards, groups, std, baseline=baseline, lengths=lengths)

    def against_group(self, std: Std, baseline: Baseline = "mean") -> GroupAdvantages:
        """Each episode's return relative to its group, ``[M]``."""
        return self.compare(self.batch.rewards, self.batch.group_ids, std, baseline)

    def group_metrics(self, grouped: GroupAdvantages, member: str) -> dict[str, float]:
        """Metrics of the groups; warns of groups with one member.

        Args:
            grouped: result of :meth:`compare`.
            member: "episode" or "turn", for the warning.
        """
        singletons, groups = grouped.num_singletons, grouped.num_groups
        if singletons:
            logger.warning(
                "%d of %d groups have one finished %s: its advantage is 0, nothing is learnt from "
                "it",
                singletons,
                groups,
                member,
            )
        return {
            "frac_reward_zero_std": (grouped.num_constant + singletons) / max(groups, 1),
            "groups_of_one": float(singletons),
        }

    def lengths(self) -> Tensor:
        """Sampled tokens of each episode, ``[M]``."""
        return self.batch.episode_ids.bincount(minlength=len(self.batch.rewards))

    def turns(self) -> Tensor:
        """The turn of each token ``[N]``, from 0 to K - 1."""
        return torch.searchsorted(self.batch.turn_ends, torch.arange(self.batch.num_tokens))

    def at_turn_ends(self, per_turn: Tensor) -> Tensor:
        """Numbers per turn ``[K]``, each at its turn's last sampled token: ``[N]``."""
        zeros = per_turn.new_zeros(self.batch.num_tokens)
        return zeros.index_add(0, self.batch.turn_ends, per_turn)

    def to_go(self, per_token: Tensor, decay: float = 1.0) -> Tensor:
        """Discounted sum from each token to its episode's end, ``[N]``."""
        rows, loss_mask = self.batch.per_episode(per_token)
        return suffix_sums(rows, loss_mask, decay)[loss_mask]

    def gae(
        self, owners: Tensor, rewards: Tensor, values: Tensor, gamma: float, lam: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """:func:`rl.credit.advantage_math.gae` of entries ``[n]``, ordered by row ``owners``."""
        lengths = owners.bincount(minlength=len(lam) if isinstance(lam, Tensor) else 0)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        paid, valued = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in (rewards, values))
        advantages, returns = gae(paid, valued, mask, gamma, lam)
        return advantages[mask], returns[mask]

    def adaptive_lambda(self, alpha: float) -> Tensor:
        """Lambda of each episode, by its length: ``[M, 1]``."""
        return adaptive_lambda(self.lengths(), alpha)[:, None]

    def dense(self, scores: Tensor) -> Tensor:
        """Sums of later token scores, minus a leave-one-out baseline: ``[N]``.

        Scores are first divided by the largest such sum of the batch (PRIME).
        """
        rows, mask = self.batch.per_episode(scores)
        rows = rows / (suffix_sums(rows, mask).abs().max() + GROUP_EPSILON)
        return suffix_sums(dense_advantages(rows, mask, self.batch.group_ids), mask)[mask]

    def whitened(self, x: Tensor) -> Tensor:
        """Numbers per token ``[N]``, shifted and scaled to mean 0 and variance 1."""
        return whiten(x, torch.ones_like(x))


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
        algorithm: the algorithm's settings.
        batch: the episodes of the update.
        values: ``[N]`` float64, required with a value head.
        old_logprobs: ``[N]`` float64, required for a divergence in the reward.
        ref_logprobs: ``[N]`` float64, required for a divergence in the reward.
        token_scores: ``[N]`` float64, required with a token reward model.

    Raises:
        ValueError: the advantage needs values of turns, and a turn has none.
        RunFailure: the advantage needs returns of 0 or more, and a return is negative; or a plug-in
            did not return one number for each token.
    """
    advantage = algorithm.advantage
    if advantage.needs_nonnegative_rewards and (batch.rewards < 0).any():
        raise RunFailure(
            f"algo.advantage={advantage.name} divides by a mean, so what each role of an episode "
            f"earns must be >= 0; one earned {batch.rewards.min():g}: choose another "
            f"algo.advantage.std, or rewards without penalties"
        )
    assert (values is not None) or not advantage.needs_values
    penalties, metrics = None, {}
    if algorithm.kl.coef and algorithm.kl.place == "reward":
        assert old_logprobs is not None and ref_logprobs is not None
        kl = kl_penalty(old_logprobs, ref_logprobs, algorithm.kl.estimator)
        penalties = algorithm.kl.coef * kl
        metrics["kl"] = kl.mean().item()
    scores = token_scores if algorithm.token_rewards.kind != "none" else None
    inputs = CreditInputs(batch, values, scores, penalties)
    credit = advantage.credit(inputs)
    if credit.advantages.shape != (batch.num_tokens,):
        raise RunFailure(
            f"algo.advantage={advantage.name} gave advantages of shape "
            f"{tuple(credit.advantages.shape)}, expected ({batch.num_tokens},): one for each token"
        )
    advantages = inputs.whitened(credit.advantages) if algorithm.whiten else credit.advantages
    return replace(credit, advantages=advantages, metrics={**metrics, **credit.metrics})


def fixed_terms(
    algorithm: Algorithm,
    batch: Batch,
    values: Tensor | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    token_scores: Tensor | None = None,
) -> tuple[FixedTerms, dict[str, float]]:
    """The terms that are constant during an update, from scores at its start.

    Args:
        algorithm: the algorithm's settings.
        batch: the episodes of the update.
        values: ``[N]`` float64; see :func:`assign_credit`.
        old_logprobs: ``[N]`` float64; also required for a correction. None: the update is a single
            optimizer step, in which the current log-probabilities are the old ones.
        ref_logprobs: ``[N]`` float64, required for a divergence.
        token_scores: ``[N]`` float64; see :func:`assign_credit`.

    Returns:
        The terms, and their metrics.

    Raises:
        ValueError: see :func:`assign_credit`.
        RunFailure: see :func:`assign_credit`.
    """
    credit = assign_credit(algorithm, batch, values, old_logprobs, ref_logprobs, token_scores)
    metrics, corrections = dict(credit.metrics), None
    if algorithm.correction.kind != "none":
        assert old_logprobs is not None
        corrections, measured = correction_weights(
            algorithm, old_logprobs, batch.sampling_logprobs, batch.episode_ids
        )
        metrics.update(measured)
    of_sampler = algorithm.old_logprobs == "sampling"
    drops = algorithm.correction.drop_divergence is not None
    fixed = FixedTerms(
        advantages=credit.advantages,
        old_logprobs=batch.sampling_logprobs if of_sampler else old_logprobs,
        ref_logprobs=ref_logprobs if algorithm.kl.place == "loss" else None,
        old_values=values,
        returns=credit.returns,
        corrections=corrections,
        sampling_logprobs=batch.sampling_logprobs if drops else None,
    )
    return fixed, metrics

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
from rl.credit.losses import MAX_LOG_RATIO, FixedTerms, kl_penalty, log_ratio
from rl.credit.options import Baseline, Std
from rl.credit.plugin import CORRECTIONS, Advantage, Credit
from rl.errors import RunFailure
from rl.rollout.trajectory import Segment

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
                "%d of %d groups have one finished %s: its advantage is 0, nothing is learned from "
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
    _check_credit(advantage, credit, batch.num_tokens)
    advantages = inputs.whitened(credit.advantages) if algorithm.whiten else credit.advantages
    return replace(credit, advantages=advantages, metrics={**metrics, **credit.metrics})


def _check_credit(advantage: Advantage, credit: Credit, num_tokens: int) -> None:
    """Raise RunFailure unless a plug-in returned one number for each token."""
    returned = {"advantages": credit.advantages}
    if advantage.needs_values:
        if credit.returns is None:
            raise RunFailure(
                f"algo.advantage={advantage.name} has needs_values=True but returned no value "
                f"targets: return Credit(advantages, returns)"
            )
        returned["returns"] = credit.returns
    for name, numbers in returned.items():
        if numbers.shape != (num_tokens,):
            raise RunFailure(
                f"algo.advantage={advantage.name} gave {name} of shape {tuple(numbers.shape)}, "
                f"expected ({num_tokens},): one for each token"
            )


def check_values(advantage: Advantage) -> None:
    """Check that an advantage with values returns value targets, on two short episodes.

    Raises:
        ValueError: the advantage does not return them, or fails.
    """
    segments = [Segment([0, 1, 2], [0, 1, 1], [0.0] * 3, [-1, 0, 0], [0, 0, 1]) for _ in range(2)]
    batch = replace(
        Batch.from_segments(segments),
        turn_ends=torch.arange(4),
        turn_rewards=torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64),
        turn_values=torch.zeros(4, dtype=torch.float64),
        turn_anchors=torch.arange(4),
        rewards=torch.tensor([1.0, 0.0], dtype=torch.float64),
        group_ids=torch.zeros(2, dtype=torch.int64),
    )
    zeros = torch.zeros(batch.num_tokens, dtype=torch.float64)
    scores = None if "none" in advantage.token_rewards else zeros
    try:
        credit = advantage.credit(CreditInputs(batch, zeros, scores))
        _check_credit(advantage, credit, batch.num_tokens)
    except RunFailure as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(
            f"algo.advantage={advantage.name} fails on two episodes of two tokens: "
            f"{type(error).__name__}: {error}"
        ) from error


class SamplerRatios:
    """Ratios rho = pi_old / pi_sampler of N sampled tokens, and of their episodes.

    Args:
        old: ``[N]``, log-probabilities under the policy at the start of the update.
        sampling: ``[N]``, the sampler's recorded log-probabilities.
        episode_ids: ``[N]`` integers >= 0.
    """

    def __init__(self, old: Tensor, sampling: Tensor, episode_ids: Tensor) -> None:
        log_rho = log_ratio(old, sampling)
        self.rho = log_rho.exp()
        """``[N]``."""
        _, self._index, counts = episode_ids.unique(return_inverse=True, return_counts=True)
        self._zeros = log_rho.new_zeros(len(counts))
        total = self._zeros.index_add(0, self._index, log_rho)
        self.product = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[self._index]
        """``[N]``, product of rho over the token's episode."""
        self.geometric_mean = (total / counts).exp()[self._index]
        """``[N]``, geometric mean of rho over the token's episode."""

    def anywhere(self, chosen: Tensor) -> Tensor:
        """Whether any token of each token's episode is ``chosen``; both ``[N]`` booleans."""
        counts = self._zeros.index_add(0, self._index, chosen.to(self._zeros.dtype))
        return counts[self._index] > 0

    def inside(
        self, weights: Tensor | float, ratios: Tensor, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        """``weights`` where ``ratios`` are from low to high, else 0; and where they are not."""
        outside = (ratios < low) | (ratios > high)
        return (torch.ones_like(ratios) * weights).masked_fill(outside, 0.0), outside


def correction_weights(
    algorithm: Algorithm, old: Tensor, sampling: Tensor, episode_ids: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The weight of each token's surrogate, and metrics of the ratios before any bound.

    Args:
        algorithm: the settings; only ``correction`` is read.
        old: ``[N]``, log-probabilities under the policy at the start of the update.
        sampling: ``[N]``, the sampler's recorded log-probabilities.
        episode_ids: ``[N]`` integers >= 0.

    Returns:
        ``[N]``, and the metrics ``correction/ratio_mean``, ``_max``, ``effective_samples`` (of N
        tokens, (sum rho)^2 / (N sum rho^2)) and ``bounded`` (share of tokens that a bound changed).

    Raises:
        RunFailure: a plug-in did not return one weight for each token.
    """
    ratios = SamplerRatios(old, sampling, episode_ids)
    rho, correction = ratios.rho, algorithm.correction
    weights, bounded = torch.ones_like(rho), torch.zeros_like(rho, dtype=torch.bool)
    if correction.kind != "none":
        rule = CORRECTIONS.make(correction.kind)
        weights, bounded = rule.weights(ratios, correction.low, correction.high)
    if weights.shape != rho.shape or bounded.shape != rho.shape:
        raise RunFailure(
            f"algo.correction.kind={correction.kind} gave weights of shape {tuple(weights.shape)} "
            f"and bounds of shape {tuple(bounded.shape)}, expected {tuple(rho.shape)}: one for "
            f"each token"
        )
    return weights, {
        "correction/ratio_mean": rho.mean().item(),
        "correction/ratio_max": rho.max().item(),
        "correction/effective_samples": (rho.sum().square() / rho.square().mean()).item()
        / len(rho) ** 2,
        "correction/bounded": bounded.double().mean().item(),
    }


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

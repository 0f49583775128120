"""Built-in advantages: one plug-in for each value of ``advantage``.

:mod:`rl.credit.advantages.math` has the formulas; :class:`CreditInputs` has the
inputs. This module does not import torch, because command lines are parsed without it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.credit.options import Baseline, Std, TurnStd, require
from rl.credit.plugin import Advantage, Credit, register

if TYPE_CHECKING:
    from torch import Tensor

    from rl.credit.advantages.inputs import CreditInputs


@register
@dataclass(frozen=True, kw_only=True)
class GroupOutcome(Advantage):
    """An episode's return relative to its group, the same for all of its tokens (GRPO)."""

    name = "group-outcome"
    needs_groups = True
    token_rewards = ("none", "head")
    baseline: Baseline = "mean"
    """Baseline of the return. ``leave-one-out`` and ``length-weighted`` require std=none."""
    std: Std = "unbiased"
    """Divisor of a group's centred returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = self.baseline == "mean" or self.std == "none"
        require("baseline", self.baseline, fine, "mean without std=none")

    @property
    def needs_nonnegative_rewards(self) -> bool:
        """Whether returns must not be negative.

        True for ``std=mean``, which divides by a group's mean.
        """
        return self.std == "mean"

    def credit(self, inputs: CreditInputs) -> Credit:
        """Give each token its episode's advantage, weighted if ``token_rewards.kind=head``."""
        grouped = inputs.against_group(self.std, self.baseline)
        advantages = grouped.advantages[inputs.batch.episode_ids]
        if inputs.token_scores is not None:
            advantages = advantages * _belief(inputs, advantages, inputs.token_scores)
        return Credit(advantages, metrics=inputs.group_metrics(grouped, "episode"))


def _belief(inputs: CreditInputs, advantages: Tensor, scores: Tensor) -> Tensor:
    """The weight of each token's advantage: how strongly the scores so far predict the outcome.

    It is ``max(2 sigmoid(w) - 1, 0)`` in right episodes and ``max(1 - 2 sigmoid(w), 0)`` in wrong
    ones, where w is the mean score up to the token (OREAL, section 3.3, as in its code).
    """
    rows, mask = inputs.batch.per_episode(scores)
    so_far = (rows.cumsum(1) / mask.cumsum(1).clamp_min(1))[mask]
    belief = 2 * so_far.sigmoid() - 1
    return belief.where(advantages > 0, -belief).clamp_min(0)


@register
@dataclass(frozen=True, kw_only=True)
class BatchOutcome(Advantage):
    """An episode's return relative to all episodes of the update."""

    name = "batch-outcome"
    over_batch = True
    std: Std = "unbiased"
    """Divisor of the update's centred returns."""

    @property
    def needs_nonnegative_rewards(self) -> bool:
        """Whether returns must not be negative.

        True for ``std=mean``, which divides by the mean.
        """
        return self.std == "mean"

    def credit(self, inputs: CreditInputs) -> Credit:
        """Give each token its episode's advantage, with the whole update as one group."""
        batch = inputs.batch
        grouped = inputs.compare(
            batch.rewards, batch.group_ids.new_zeros(len(batch.rewards)), self.std
        )
        metrics = inputs.group_metrics(grouped, "episode")
        return Credit(grouped.advantages[batch.episode_ids], metrics=metrics)


@register
@dataclass(frozen=True, kw_only=True)
class GroupProcess(Advantage):
    """Each turn's reward relative to all turns of the group, summed from the token on."""

    name = "group-process"
    std: TurnStd = "unbiased"
    """Divisor of the centred rewards of a group's turns."""

    def credit(self, inputs: CreditInputs) -> Credit:
        """Process supervision (DeepSeekMath, section 4.1.3)."""
        batch = inputs.batch
        groups = batch.group_ids[batch.episode_ids[batch.turn_ends]]
        grouped = inputs.compare(batch.turn_rewards, groups, self.std)
        advantages = inputs.to_go(inputs.at_turn_ends(grouped.advantages))
        return Credit(advantages, metrics=inputs.group_metrics(grouped, "turn"))


@register
@dataclass(frozen=True, kw_only=True)
class GroupInGroup(Advantage):
    """``group-outcome`` plus a comparison of turns that answered the same observation (GiGPO)."""

    name = "group-in-group"
    std: TurnStd = "none"
    """Divisor of centred rewards."""
    gamma_turn: float = 0.95
    """Discount per turn."""
    turn_weight: float = 1.0
    """Weight of the turn's part of the advantage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma_turn", self.gamma_turn)
        require("turn_weight", self.turn_weight, self.turn_weight >= 0, ">= 0")

    def credit(self, inputs: CreditInputs) -> Credit:
        """A = A^E + w A^S (GiGPO, section 4): A^E compares episodes and A^S turns.

        w is ``turn_weight``.
        """
        batch = inputs.batch
        episodes = inputs.against_group(self.std)
        owners, rewards = batch.episode_ids[batch.turn_ends], batch.turn_rewards
        to_go, _ = inputs.gae(
            owners, rewards, rewards.new_zeros(len(rewards)), self.gamma_turn, 1.0
        )
        steps = inputs.compare(to_go, batch.turn_anchors, self.std)
        advantages = episodes.advantages[owners] + self.turn_weight * steps.advantages
        metrics = inputs.group_metrics(episodes, "episode")
        metrics["frac_turns_alone"] = steps.num_singletons / len(owners)
        return Credit(advantages[inputs.turns()], metrics=metrics)


@register
@dataclass(frozen=True, kw_only=True)
class GroupDense(Advantage):
    """Token rewards and returns with leave-one-out baselines, summed from the token on (PRIME)."""

    name = "group-dense"
    token_rewards = ("implicit",)
    over_batch = True
    token_coef: float = 1.0
    """Weight of the token rewards. The return has weight 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("token_coef", self.token_coef, self.token_coef >= 0, ">= 0")

    def credit(self, inputs: CreditInputs) -> Credit:
        """Returns plus sums of later token scores, each minus a leave-one-out baseline (PRIME)."""
        assert inputs.token_scores is not None
        grouped = inputs.against_group("none", "leave-one-out")
        dense = inputs.dense(inputs.token_scores)
        advantages = grouped.advantages[inputs.batch.episode_ids] + self.token_coef * dense
        return Credit(advantages, metrics=inputs.group_metrics(grouped, "episode"))


@register
@dataclass(frozen=True, kw_only=True)
class RewardToGo(Advantage):
    """The discounted sum of rewards from the token on, without a baseline."""

    name = "reward-to-go"
    gamma: float = 1.0
    """Discount per sampled token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma", self.gamma)

    def credit(self, inputs: CreditInputs) -> Credit:
        """The advantage of REINFORCE: discounted sums of rewards."""
        rewards = inputs.at_turn_ends(inputs.batch.turn_rewards)
        return Credit(inputs.to_go(rewards, self.gamma))


@register
@dataclass(frozen=True, kw_only=True)
class Vine(Advantage):
    """A turn's reward plus the increase in the state's Monte Carlo value (VinePPO)."""

    name = "vine"
    rollouts: int = 9
    """Number of continuations that are played from the start of each turn."""
    gamma_turn: float = 1.0
    """Discount per turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("rollouts", self.rollouts, self.rollouts >= 1, ">= 1")
        _share("gamma_turn", self.gamma_turn)

    @property
    def turn_rollouts(self) -> int:
        """The setting ``rollouts``."""
        return self.rollouts

    @property
    def turn_discount(self) -> float:
        """The setting ``gamma_turn``."""
        return self.gamma_turn

    def credit(self, inputs: CreditInputs) -> Credit:
        """A = r + gamma_turn V_next - V (VinePPO, section 4), the same for all tokens of a turn."""
        batch = inputs.batch
        values, ends = batch.turn_values, batch.turn_ends
        if values.isnan().any():
            raise ValueError(
                f"{int(values.isnan().sum())} of {len(values)} turns have no value: advantage=vine "
                f"needs episodes of a Collector with vine=Vine(rollouts=...)"
            )
        owners = batch.episode_ids[ends]
        advantages, _ = inputs.gae(owners, batch.turn_rewards, values, self.gamma_turn, 0.0)
        return Credit(advantages[inputs.turns()], metrics={"vine/value": values.mean().item()})


@dataclass(frozen=True, kw_only=True)
class _FromValues(Advantage):
    """Base class of the advantages with a value head."""

    needs_values = True
    lam: float = 1.0
    """Lambda of generalised advantage estimation: 0 is one-step, 1 is Monte Carlo."""
    whiten_rewards: bool = False
    """Whether the rewards of the update's sampled tokens are divided by their standard deviation,
    which also scales the value targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("lam", self.lam)

    def credit(self, inputs: CreditInputs) -> Credit:
        """Advantages and value targets.

        With ``kl.place=reward``, the weighted divergence from the reference is subtracted from each
        token's reward.
        """
        assert inputs.values is not None
        values, rewards = inputs.values, inputs.at_turn_ends(inputs.batch.turn_rewards)
        if inputs.penalties is not None:
            rewards = rewards - inputs.penalties
        if self.whiten_rewards:
            # Without a shift, as in lm-human-preferences: a shift would reward long episodes.
            rewards = inputs.whitened(rewards) + rewards.mean()
        advantages, returns = self.estimate(inputs, rewards, values)
        spread = (returns - returns.mean()).square().sum()
        residual = returns - values
        unexplained = (residual - residual.mean()).square().sum()
        explained = (1 - unexplained / spread).item() if spread > 0 else 0.0
        return Credit(advantages, returns, {"explained_variance": explained})

    @abstractmethod
    def estimate(
        self, inputs: CreditInputs, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, from the rewards and values of tokens. Each is ``[N]``."""


@register
@dataclass(frozen=True, kw_only=True)
class Gae(_FromValues):
    """Generalised advantage estimation with a value head, over sampled tokens (PPO)."""

    name = "gae"
    gamma: float = 1.0
    """Discount per sampled token."""
    lam_alpha: float | None = None
    """If set, the lambda of an episode with L sampled tokens is 1 - 1 / (lam_alpha L) instead of
    lam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma", self.gamma)
        alpha = self.lam_alpha
        require("lam_alpha", alpha, alpha is None or alpha > 0, "above 0, or None")

    def estimate(
        self, inputs: CreditInputs, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """GAE over the sampled tokens of each episode."""
        lam: float | Tensor = self.lam
        if self.lam_alpha is not None:
            lam = inputs.adaptive_lambda(self.lam_alpha)
        return inputs.gae(inputs.batch.episode_ids, rewards, values, self.gamma, lam)


@register
@dataclass(frozen=True, kw_only=True)
class TurnGae(_FromValues):
    """``gae`` over turns instead of tokens; all tokens of a turn have the same advantage."""

    name = "turn-gae"
    gamma_turn: float = 1.0
    """Discount per turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma_turn", self.gamma_turn)

    def estimate(
        self, inputs: CreditInputs, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """GAE over turns. The value of a turn is the value at its first sampled token."""
        turns, ends = inputs.turns(), inputs.batch.turn_ends
        starts = ends.roll(1) + 1
        starts[:1] = 0
        paid = rewards.new_zeros(len(ends)).index_add(0, turns, rewards)
        owners = inputs.batch.episode_ids[ends]
        advantages, returns = inputs.gae(owners, paid, values[starts], self.gamma_turn, self.lam)
        return advantages[turns], returns[turns]


@register
@dataclass(frozen=True, kw_only=True)
class BilevelGae(_FromValues):
    """``gae`` over turns, then over the tokens of each turn (VAGEN's bi-level estimator)."""

    name = "bilevel-gae"
    gamma: float = 1.0
    """Discount per sampled token."""
    gamma_turn: float = 0.95
    """Discount per turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma", self.gamma)
        _share("gamma_turn", self.gamma_turn)

    def estimate(
        self, inputs: CreditInputs, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """GAE over turns gives each turn's return; GAE within the turn starts from that return."""
        turns, ends = inputs.turns(), inputs.batch.turn_ends
        owners = inputs.batch.episode_ids[ends]
        # A divergence is subtracted at every token. Over turns, the part before a turn's last token
        # counts with the turn before it; within the turn, it counts at its own token.
        within = rewards.index_fill(0, ends, 0.0)
        paid = rewards[ends]
        before = paid.new_zeros(len(ends)).index_add(0, turns, within)[1:]
        paid[:-1] += before.masked_fill(owners[1:] != owners[:-1], 0.0)
        _, earned = inputs.gae(owners, paid, values[ends], self.gamma_turn, self.lam)
        inner = within.index_copy(0, ends, earned)
        return inputs.gae(turns, inner, values, self.gamma, self.lam)


def _share(key: str, value: float) -> None:
    require(key, value, 0 <= value <= 1, "from 0 to 1")

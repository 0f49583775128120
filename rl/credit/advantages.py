"""The advantages: one plug-in for each ``advantage``.

:mod:`rl.credit.advantage_math` has the arithmetic. :class:`rl.credit.assignment.CreditInputs` has
what an update knows of its tokens. Nothing here imports torch: a command line is read without it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.credit.options import Baseline, Std, TurnStd, require
from rl.credit.plugin import Advantage, Credit, register

if TYPE_CHECKING:
    from torch import Tensor

    from rl.credit.assignment import CreditInputs


@register
@dataclass(frozen=True, kw_only=True)
class GroupOutcome(Advantage):
    """An episode's return relative to its group, the same for all of its tokens (GRPO)."""

    name = "group-outcome"
    token_rewards = ("none", "head")
    baseline: Baseline = "mean"
    """What the return is compared with; ``leave-one-out`` and ``length-weighted`` with std=none."""
    std: Std = "unbiased"
    """What a group's centred returns are divided by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = self.baseline == "mean" or self.std == "none"
        require("baseline", self.baseline, fine, "mean without std=none")

    @property
    def needs_nonnegative_rewards(self) -> bool:
        """It does where it divides by a group's mean."""
        return self.std == "mean"

    def credit(self, inputs: CreditInputs) -> Credit:
        """Each token has that of its episode; ``token_rewards.kind=head`` weighs it by belief."""
        grouped = inputs.against_group(self.std, self.baseline)
        advantages = grouped.advantages[inputs.batch.episode_ids]
        if inputs.token_scores is not None:
            advantages = advantages * _belief(inputs, advantages, inputs.token_scores)
        return Credit(advantages, metrics=inputs.group_metrics(grouped, "episode"))


def _belief(inputs: CreditInputs, advantages: Tensor, scores: Tensor) -> Tensor:
    """What a token's advantage weighs: how far scores up to it bear the outcome out.

    ``max(2 sigmoid(w) - 1, 0)`` of right episodes and ``max(1 - 2 sigmoid(w), 0)`` of wrong ones, w
    being the mean score up to the token (OREAL, section 3.3, as in its code).
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
    """What the update's centred returns are divided by."""

    @property
    def needs_nonnegative_rewards(self) -> bool:
        """It does where it divides by the update's mean."""
        return self.std == "mean"

    def credit(self, inputs: CreditInputs) -> Credit:
        """The whole update is one group."""
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
    """What the centred rewards of a group's turns are divided by."""

    def credit(self, inputs: CreditInputs) -> Credit:
        """DeepSeekMath, section 4.1.3: process supervision."""
        batch = inputs.batch
        groups = batch.group_ids[batch.episode_ids[batch.turn_ends]]
        grouped = inputs.compare(batch.turn_rewards, groups, self.std)
        advantages = inputs.to_go(inputs.at_turn_ends(grouped.advantages))
        return Credit(advantages, metrics=inputs.group_metrics(grouped, "turn"))


@register
@dataclass(frozen=True, kw_only=True)
class GroupInGroup(Advantage):
    """``group-outcome`` plus a comparison of turns that answered the same observation (GiGPO).

    answered the same observation (GiGPO).
    """

    name = "group-in-group"
    std: TurnStd = "none"
    """What centred rewards are divided by."""
    gamma_turn: float = 0.95
    """Discount per turn."""
    turn_weight: float = 1.0
    """Weight of the turns' part of the advantage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma_turn", self.gamma_turn)
        require("turn_weight", self.turn_weight, self.turn_weight >= 0, ">= 0")

    def credit(self, inputs: CreditInputs) -> Credit:
        """A = A^E + w A^S (GiGPO, section 4): of the episode, and of the turn among its like."""
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
    """Token rewards and returns with leave-one-out baselines, summed from the token on (PRIME).

    the token on (PRIME; token_rewards.kind=implicit).
    """

    name = "group-dense"
    token_rewards = ("implicit",)
    over_batch = True
    token_coef: float = 1.0
    """Weight of the token rewards beside the return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("token_coef", self.token_coef, self.token_coef >= 0, ">= 0")

    def credit(self, inputs: CreditInputs) -> Credit:
        """Of returns and of token scores, each leave-one-out, the sum of what follows (PRIME)."""
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
        """REINFORCE."""
        rewards = inputs.at_turn_ends(inputs.batch.turn_rewards)
        return Credit(inputs.to_go(rewards, self.gamma))


@register
@dataclass(frozen=True, kw_only=True)
class Vine(Advantage):
    """A turn's reward plus the next state's value minus its own, by Monte Carlo (VinePPO).

    what the policy earns in continuations from a copy of the episode (VinePPO).
    """

    name = "vine"
    rollouts: int = 9
    """Continuations that are played from the beginning of each turn."""
    gamma_turn: float = 1.0
    """Discount per turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("rollouts", self.rollouts, self.rollouts >= 1, ">= 1")
        _share("gamma_turn", self.gamma_turn)

    @property
    def turn_rollouts(self) -> int:
        """The continuations that it asks for."""
        return self.rollouts

    @property
    def turn_discount(self) -> float:
        """Its own discount."""
        return self.gamma_turn

    def credit(self, inputs: CreditInputs) -> Credit:
        """A = r + gamma_turn V_next turn - V (VinePPO, section 4), for all tokens of a turn."""
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
    """What the advantages with a value head share."""

    needs_values = True
    lam: float = 1.0
    """Lambda of gae: 0 one-step, 1 Monte Carlo."""
    whiten_rewards: bool = False
    """Whether the rewards of the update's sampled tokens are divided by their deviation, which
    scales value targets too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("lam", self.lam)

    def credit(self, inputs: CreditInputs) -> Credit:
        """Advantages and value targets of rewards, from which a divergence may be taken."""
        assert inputs.values is not None
        values, rewards = inputs.values, inputs.at_turn_ends(inputs.batch.turn_rewards)
        if inputs.penalties is not None:
            rewards = rewards - inputs.penalties
        if self.whiten_rewards:
            # Without a shift, as in lm-human-preferences: it would pay for long episodes.
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
        """Advantages and returns ``[N]`` of token rewards ``[N]``."""


@register
@dataclass(frozen=True, kw_only=True)
class Gae(_FromValues):
    """Generalised advantage estimation with a value head, over sampled tokens (PPO)."""

    name = "gae"
    gamma: float = 1.0
    """Discount per sampled token."""
    lam_alpha: float | None = None
    """Of episodes with L sampled tokens lambda is 1 - 1 / (lam_alpha L); None: lam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("gamma", self.gamma)
        alpha = self.lam_alpha
        require("lam_alpha", alpha, alpha is None or alpha > 0, "above 0, or None")

    def estimate(
        self, inputs: CreditInputs, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An episode is a row of tokens."""
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
        """A turn's value is that of the state in which its first token was sampled."""
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
        """A turn's return is the reward at its end, and nothing beyond it is bootstrapped."""
        turns, ends = inputs.turns(), inputs.batch.turn_ends
        owners = inputs.batch.episode_ids[ends]
        # What a divergence takes from a turn's other tokens is not its end's: it is between the end
        # before and this one, and within the turn it is paid where it stands.
        within = rewards.index_fill(0, ends, 0.0)
        paid = rewards[ends]
        before = paid.new_zeros(len(ends)).index_add(0, turns, within)[1:]
        paid[:-1] += before.masked_fill(owners[1:] != owners[:-1], 0.0)
        _, earned = inputs.gae(owners, paid, values[ends], self.gamma_turn, self.lam)
        inner = within.index_copy(0, ends, earned)
        return inputs.gae(turns, inner, values, self.gamma, self.lam)


def _share(key: str, value: float) -> None:
    require(key, value, 0 <= value <= 1, "from 0 to 1")

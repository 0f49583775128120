"""The inputs of an advantage: the batch of an update, and its scores."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl.credit.advantages.math import (
    GROUP_EPSILON,
    GroupAdvantages,
    adaptive_lambda,
    dense_advantages,
    gae,
    group_advantages,
    suffix_sums,
    whiten,
)
from rl.credit.batch import Batch
from rl.credit.options import Baseline, Std

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """Inputs of an advantage. An update has M episodes, K turns and N sampled tokens."""

    batch: Batch
    """Rewards, turns and groups of the update, on the CPU."""
    values: Tensor | None = None
    """``[N]`` float64, the value of the state before each token. None unless ``needs_values``."""
    token_scores: Tensor | None = None
    """``[N]`` float64, scores of the token reward model. None without ``token_rewards.kind``."""
    penalties: Tensor | None = None
    """``[N]`` float64, the weighted divergence to subtract from each token's reward. None unless
    ``kl.place=reward``."""
    memory: MutableMapping[str, float] = field(default_factory=dict)
    """Numbers that the advantage keeps from update to update. Checkpoints contain them, and a
    failed update does not change them."""

    def compare(
        self, rewards: Tensor, groups: Tensor, std: Std, baseline: Baseline = "mean"
    ) -> GroupAdvantages:
        """Advantages of the ``[n]`` rewards of episodes or turns, relative to ``groups``."""
        lengths = self.lengths() if baseline == "length-weighted" else None
        return group_advantages(rewards, groups, std, baseline=baseline, lengths=lengths)

    def against_group(self, std: Std, baseline: Baseline = "mean") -> GroupAdvantages:
        """Each episode's return relative to its group, ``[M]``."""
        return self.compare(self.batch.rewards, self.batch.group_ids, std, baseline)

    def group_metrics(self, grouped: GroupAdvantages, member: str) -> dict[str, float]:
        """Metrics of the groups. Logs a warning about groups with one member.

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
        """Number of sampled tokens of each episode, ``[M]``."""
        return self.batch.episode_ids.bincount(minlength=len(self.batch.rewards))

    def turns(self) -> Tensor:
        """The turn of each token ``[N]``, from 0 to K - 1."""
        return torch.searchsorted(self.batch.turn_ends, torch.arange(self.batch.num_tokens))

    def at_turn_ends(self, per_turn: Tensor) -> Tensor:
        """``per_turn`` ``[K]`` at the last sampled token of each turn, 0 elsewhere: ``[N]``."""
        zeros = per_turn.new_zeros(self.batch.num_tokens)
        return zeros.index_add(0, self.batch.turn_ends, per_turn)

    def to_go(self, per_token: Tensor, decay: float = 1.0) -> Tensor:
        """Discounted sum of ``per_token`` from each token to the end of its episode, ``[N]``."""
        rows, loss_mask = self.batch.per_episode(per_token)
        return suffix_sums(rows, loss_mask, decay)[loss_mask]

    def gae(
        self, owners: Tensor, rewards: Tensor, values: Tensor, gamma: float, lam: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns of n entries by GAE, ``[n]`` each.

        ``owners`` ``[n]`` is the sequence of each entry. The entries are ordered by sequence, and
        then by time. See :func:`rl.credit.advantages.math.gae`.
        """
        lengths = owners.bincount(minlength=len(lam) if isinstance(lam, Tensor) else 0)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        paid, valued = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in (rewards, values))
        advantages, returns = gae(paid, valued, mask, gamma, lam)
        return advantages[mask], returns[mask]

    def adaptive_lambda(self, alpha: float) -> Tensor:
        """Lambda of each episode, computed from its number of sampled tokens: ``[M, 1]``."""
        return adaptive_lambda(self.lengths(), alpha)[:, None]

    def dense(self, scores: Tensor) -> Tensor:
        """Sum of the scores from each token on, minus a leave-one-out baseline: ``[N]``.

        The scores are first divided by the largest magnitude of such a sum in the batch (PRIME).
        """
        rows, mask = self.batch.per_episode(scores)
        rows = rows / (suffix_sums(rows, mask).abs().max() + GROUP_EPSILON)
        return suffix_sums(dense_advantages(rows, mask, self.batch.group_ids), mask)[mask]

    def whitened(self, x: Tensor) -> Tensor:
        """Numbers per token ``[N]``, shifted and scaled to mean 0 and variance 1."""
        return whiten(x, torch.ones_like(x))

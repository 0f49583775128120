"""The advantage for roles that one policy plays against or with itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.credit.options import require
from rl.credit.plugin import Advantage, Credit, register

if TYPE_CHECKING:
    from rl.credit.advantages.inputs import CreditInputs


@register
@dataclass(frozen=True, kw_only=True)
class RoleAverage(Advantage):
    """An episode's return minus a moving average of the same role's returns (SPIRAL)."""

    name = "role-average"
    over_batch = True
    alpha: float = 0.95
    """Weight of the former average; the new return has weight 1 - alpha."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("alpha", self.alpha, 0 <= self.alpha < 1, "at least 0 and below 1")

    def credit(self, inputs: CreditInputs) -> Credit:
        """Role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119, section 3).

        For each episode in turn, b <- alpha b + (1 - alpha) R and A = R - b, with a separate b for
        each role of each environment. The averages start at 0 and last from update to update.
        """
        averages, batch = inputs.memory, inputs.batch
        advantages = batch.rewards.clone()
        for episode, (role, earned) in enumerate(
            zip(batch.roles, batch.rewards.tolist(), strict=True)
        ):
            average = self.alpha * averages.get(role, 0.0) + (1 - self.alpha) * earned
            averages[role] = average
            advantages[episode] = earned - average
        metrics = {f"baseline/{role or 'all'}": averages[role] for role in sorted(averages)}
        return Credit(advantages[batch.episode_ids], metrics=metrics)

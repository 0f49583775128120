"""Advantages: the built-in ones, their inputs and their formulas."""

from rl.credit.advantages.builtin import (
    BatchOutcome,
    BilevelGae,
    Gae,
    GroupDense,
    GroupInGroup,
    GroupOutcome,
    GroupProcess,
    RewardToGo,
    TurnGae,
    Vine,
)
from rl.credit.advantages.roles import RoleAverage

__all__ = [
    "BatchOutcome",
    "BilevelGae",
    "Gae",
    "GroupDense",
    "GroupInGroup",
    "GroupOutcome",
    "GroupProcess",
    "RewardToGo",
    "RoleAverage",
    "TurnGae",
    "Vine",
]

r"""Published rewards for a text that ends with an answer: accuracy and format.

The answer is the content of the last ``\boxed{...}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envs.rewards.format import boxed_answer, last_boxed


@dataclass(frozen=True, slots=True)
class MathReward:
    """A published reward, and the instructions that it requires for the agent."""

    rubric: str
    """The rubric, as a text for ``envs.rewards.make_rubric``."""
    find_answer: Callable[[str], str | None] = last_boxed
    """Returns the answer in the agent's last action, or None if there is none."""
    instructions: str = r"Put the answer in \boxed{ }."


_TAGS = (
    "Think first, then answer:\n<think>\nyour thoughts\n</think>\n<answer>\n"
    "\\boxed{ }\n</answer>\nThe box holds the final answer."
)
_THINK = r"Think between <think> and </think>, each on a line of its own, then answer in \boxed{ }."

MATH_REWARDS: Mapping[str, MathReward] = {
    "accuracy": MathReward("accuracy"),
    "r1-zero": MathReward("accuracy + think_answer", instructions=_TAGS),
    "open-r1-tags": MathReward("accuracy + tag_count", instructions=_TAGS),
    "open-rs": MathReward("2*accuracy + one_think_end", instructions=_THINK),
    "orz": MathReward("accuracy", boxed_answer, _TAGS),
}
"""Rewards by name.

"r1-zero" is DeepSeek-R1-Zero's (arXiv:2501.12948): accuracy plus format, each with weight 1
because the paper states no weights. "open-r1-tags" replaces the format by open-r1's tag count.
"open-rs" has weights 2 and 1 (arXiv:2503.16219). "orz" is Open-Reasoner-Zero's
(arXiv:2503.24290): the format earns no reward, and the box counts only inside ``<answer>``.
"""

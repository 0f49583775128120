r"""Published rewards for a text that ends in an answer: accuracy, and what its format earns.

The answer is what the last ``\boxed{...}`` holds, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envs.rewards.format import boxed_answer, last_boxed


@dataclass(frozen=True, slots=True)
class MathReward:
    """What is paid for, and what an agent has to know of it."""

    rubric: str
    """The rubric, in the words of ``envs.rewards.make_rubric``."""
    find_answer: Callable[[str], str | None] = last_boxed
    """The answer in the agent's last words; None where there is none."""
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
"""By name: DeepSeek-R1-Zero (arXiv:2501.12948, accuracy plus format at equal weight; 1 each, which
the paper does not say), open-r1's tag count beside it, open-rs (arXiv:2503.16219, 2 and 1), and
Open-Reasoner-Zero (arXiv:2503.24290: nothing for the format, and the box counts only inside
``<answer>``)."""

"""Named shapings that reward lengths. Their options are checked when a run starts.

A length is the number of sampled tokens in all turns of an episode. ``l1_max`` and ``cosine``
replace the 1 of a right answer by a reward that depends on its length; the others add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from rl.credit.shaping import lengths
from rl.credit.shaping.shaping import Member, Shaping


def kimi_length() -> Shaping:
    """Rewards the shorter answers of a group; see ``lengths.kimi_length``."""

    def contribute(members: Sequence[Member]) -> list[float]:
        tokens = [member.num_tokens for member in members]
        return lengths.kimi_length(tokens, [member.right for member in members])

    return Shaping("kimi_length", contribute)


def overlong(max_length: int = 0, cache: int = 0) -> Shaping:
    """Penalises answers beyond ``max_length - cache`` tokens by up to 1; see ``lengths.overlong``.

    Args:
        max_length: tokens. 0 means the maximum that the episode could sample, given
            sampling.max_tokens, env.max_turns and the rest of the context window.
        cache: number of tokens before max_length over which the penalty grows. 0 means a fifth of
            max_length, as in DAPO.

    Raises:
        ValueError: ``max_length`` is negative, or ``cache`` is out of range.
    """
    if max_length < 0 or not 0 <= cache <= (max_length or cache):
        raise ValueError(f"cache ({cache}) must be from 0 to max_length ({max_length})")

    def contribute(member: Member) -> float:
        longest = max_length or member.limit
        if longest < 1:
            raise ValueError("max_length is missing: the maximum length of an episode is unknown")
        return lengths.overlong(
            member.num_tokens, longest, min(longest, cache or ceil(longest / 5))
        )

    return _each("overlong", contribute)


def l1_exact(alpha: float = 0.0003) -> Shaping:
    """Penalises each token above or below the budget by ``alpha``; see ``lengths.l1_exact``.

    Needs ``env.token_budget=exact`` or ``both``. Episodes whose prompt states a maximum are not
    shaped.

    Raises:
        ValueError: alpha is negative.
    """
    _check_alpha(alpha)
    return _budgeted("exact", lambda length, budget, _: lengths.l1_exact(length, budget, alpha))


def l1_max(
    alpha: float = 0.0003, delta: float = 0.5, rule: Literal["paper", "code"] = "paper"
) -> Shaping:
    """Rewards a right answer within the budget by up to 1; see ``lengths.l1_max``.

    Needs ``env.token_budget=max`` or ``both``. Episodes whose prompt states an exact budget are not
    shaped.

    Args:
        alpha: slope per token.
        delta: reward of a right answer exactly at the budget (rule paper only).
        rule: "paper" multiplies the 1 of a right answer; "code" adds ``lengths.l1_max_code``.

    Raises:
        ValueError: alpha is negative, or the rule is unknown.
    """
    _check_alpha(alpha)
    if rule not in ("paper", "code"):
        raise ValueError(f"rule ({rule!r}) must be one of paper, code")

    def contribute(length: int, budget: int, right: bool) -> float:
        if rule == "code":
            return lengths.l1_max_code(length, budget, alpha)
        return right * (lengths.l1_max(length, budget, alpha, delta) - 1.0)

    return _budgeted("max", contribute)


def cosine(
    max_length: int,
    right_start: float = 1.0,
    right_end: float = 0.5,
    wrong_start: float = -1.0,
    wrong_end: float = -0.5,
    clamp: bool = True,
) -> Shaping:
    """Rewards short right answers and long wrong ones more than others; see ``lengths.cosine``.

    ``wrong_start=0.0, wrong_end=-0.5`` are the values in open-rs's scripts. ``clamp=False`` is the
    formula of open-rs's code.

    Raises:
        ValueError: max_length is below 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length ({max_length}) must be >= 1")

    def contribute(member: Member) -> float:
        ends = (right_start, right_end) if member.right else (wrong_start, wrong_end)
        return lengths.cosine(member.num_tokens, max_length, *ends, clamp) - member.right

    return _each("cosine", contribute)


def _each(name: str, contribute: Callable[[Member], float]) -> Shaping:
    return Shaping(name, lambda members: [contribute(member) for member in members])


def _budgeted(
    kind: Literal["exact", "max"], contribute: Callable[[int, int, bool], float]
) -> Shaping:
    def one(member: Member) -> float:
        budget = member.budget
        if budget is None or budget.kind != kind:
            return 0.0
        return contribute(member.num_tokens, budget.tokens, member.right)

    return Shaping(f"l1_{kind}", lambda members: [one(member) for member in members], kind)


def _check_alpha(alpha: float) -> None:
    if not alpha >= 0:
        raise ValueError(f"alpha ({alpha}) must be >= 0")

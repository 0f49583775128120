"""Token budgets in prompts: the number of tokens that the agent should generate.

As in L1 (Aggarwal and Welleck, arXiv:2503.04697), the first observation ends in ``Think for 512
tokens.`` or ``Think for maximum 512 tokens.``. Environments count no tokens. ``rl.credit.shaping``
counts them, and reads the budget from an episode's scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envs.datasets.splits import ALL, SPLITS

LOWEST, HIGHEST = 100, 4000
"""Default range of budgets in tokens, as in L1."""
_RULE = re.compile(r"(?P<kind>exact|max|both)(:(?P<low>\d+)-(?P<high>\d+))?")
_SENTENCE = re.compile(r"\nThink for (maximum )?\d+ tokens\.$")
_STREAM = 0x4C31
"""Part of the random seed. With it, budgets and tasks have different random numbers."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Number of tokens that an episode should take."""

    kind: Literal["exact", "max"]
    tokens: int


def sentence_of(budget: TokenBudget | None) -> str:
    """The line of a prompt that states the budget; empty without a budget."""
    if budget is None:
        return ""
    return f"\nThink for {'maximum ' if budget.kind == 'max' else ''}{budget.tokens} tokens."


def scores_of(budget: TokenBudget | None) -> dict[str, float]:
    """The scores that record a budget."""
    if budget is None:
        return {}
    return {"token_budget": float(budget.tokens), "budget_is_max": float(budget.kind == "max")}


def budget_of(scores: Mapping[str, float]) -> TokenBudget | None:
    """The budget in an episode's scores; the inverse of :func:`scores_of`."""
    if "token_budget" not in scores:
        return None
    kind: Literal["exact", "max"] = "max" if scores.get("budget_is_max") else "exact"
    return TokenBudget(kind, int(scores["token_budget"]))


def budget_kinds(rule: str) -> tuple[Literal["exact", "max"], ...]:
    """The kinds of budget that a rule allows; none for an empty rule."""
    if not rule:
        return ()
    named = _parse(rule)[0]
    return ("exact", "max") if named == "both" else ("max",) if named == "max" else ("exact",)


def draw_budget(rule: str, split: str, seed: int, index: int) -> TokenBudget | None:
    """The budget of a task, which (split, index, seed) determines. None if the rule is empty.

    Args:
        rule: "exact", "max", or "both" (each for half of the tasks). A range other than L1's
            follows the word: "exact:32-256". All numbers of the range, both ends included, are
            equally likely.
        split: the tasks' split.
        seed: the environment's seed.
        index: index of the task.

    Raises:
        ValueError: the rule is malformed.
    """
    if not rule:
        return None
    _, low, high = _parse(rule)
    kinds = budget_kinds(rule)
    rng = np.random.default_rng([seed, (*SPLITS, ALL).index(split), index, _STREAM])
    tokens = int(rng.integers(low, high + 1))
    return TokenBudget(kinds[int(rng.integers(len(kinds)))], tokens)


def without_budget(observation: str) -> str:
    """An observation without the sentence that states a budget."""
    return _SENTENCE.sub("", observation)


def _parse(rule: str) -> tuple[str, int, int]:
    found = _RULE.fullmatch(rule)
    low, high = LOWEST, HIGHEST
    if found is not None and found["low"]:
        low, high = int(found["low"]), int(found["high"])
    if found is None or not 1 <= low <= high < 2**31:
        raise ValueError(
            f"token_budget ({rule!r}) must be exact, max or both, or such as max:32-256"
        )
    return found["kind"], low, high

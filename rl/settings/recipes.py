"""Recipes: algorithms that also set other settings of a run.

``algo=dapo`` selects the recipe's algorithm and settings. The user's own settings override them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import ALGORITHMS


@dataclass(frozen=True)
class Recipe:
    """An algorithm, and a run's other settings: texts, by the command line's keys."""

    row: Algorithm
    settings: Mapping[str, str]


RECIPES: dict[str, Recipe] = {
    # DAPO, arXiv 2503.14476, sections 3.1 to 3.4: clip-higher and the token mean, groups without a
    # gradient replaced in up to ten draws (verl's number), a soft penalty before the token limit.
    "dapo": Recipe(
        ALGORITHMS["dapo-loss"],
        {"curriculum.max_draws": "10", "shaping": "overlong"},
    ),
    # L1, arXiv 2503.04697, section 3: a token budget in the prompt, and rewards for keeping it.
    "lcpo-exact": Recipe(
        ALGORITHMS["grpo"].changed({"kl.coef": 0.001}),
        {"env.token_budget": "exact", "shaping": "l1_exact"},
    ),
    "lcpo-max": Recipe(
        ALGORITHMS["grpo"].changed({"kl.coef": 0.001}),
        {"env.token_budget": "max", "shaping": "l1_max"},
    ),
    # Concise Reasoning via RL, arXiv 2504.05185: the second phase is PPO with lambda below 1 on a
    # few problems that are sometimes solved. Its rewards are in recipes/concise.toml.
    "concise": Recipe(
        ALGORITHMS["ppo"].changed({"advantage.lam": 0.95}),
        {"curriculum.pool": "8", "prompts": "8"},
    ),
}

"""Shaping: what a finished group's episodes earn beside their rewards, by name.

A shaping sees tokens and siblings, which no environment does. What it gives is recorded with each
episode as a named contribution; ``Trajectory.shaped_reward`` is what advantages see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from envs.rewards.registration import find
from envs.rewards.spec import parse_terms
from envs.token_budget import TokenBudget
from tools.registry import build

if TYPE_CHECKING:
    from rl.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Member:
    """What a shaping knows of one finished episode of a group."""

    num_tokens: int
    """Sampled tokens, over all turns."""
    right: bool
    """Whether the episode succeeded."""
    reward: float
    """Its own return."""
    budget: TokenBudget | None = None
    """What its prompt asked for, where it did."""
    limit: int = 0
    """The most tokens that the episode could have sampled beside what it read; 0: unknown."""
    episode: Trajectory | None = None
    """Its whole record: what was read and said, as text and as tokens."""


@dataclass(frozen=True)
class Shaping:
    """One named contribution for each member of a group.

    Args:
        name: under which it is recorded.
        contribute: from a group's finished members to what each earns beside its reward, in order.
        budget: the kind of token budget that prompts must name for it; "" for none.
        judges: whether it says how good an episode is: its agreement with the environment's own
            outcome is then logged.
        by_group: False gives it the members of all groups of a step at once, for speed.
    """

    name: str
    contribute: Callable[[Sequence[Member]], Sequence[float]]
    budget: Literal["", "exact", "max"] = ""
    judges: bool = False
    by_group: bool = True


@dataclass(frozen=True)
class Weighted:
    """A shaping with its weight."""

    weight: float
    shaping: Shaping

    def contributions(self, members: Sequence[Member]) -> list[float]:
        """What each member earns.

        Raises:
            ValueError: the shaping gives another count than there are members, or no finite number.
        """
        name = self.shaping.name
        given = [self.weight * float(x) for x in self.shaping.contribute(members)]
        if len(given) != len(members) or not all(math.isfinite(x) for x in given):
            raise ValueError(f"shaping {name!r} gave {given} for {len(members)} episodes")
        return given


def make_shapings(text: str, key: str = "shaping") -> tuple[Weighted, ...]:
    """The shapings that a word of the command line asks for; none for an empty one.

    Args:
        text: names with weights and options, as ``envs.rewards.spec`` reads them:
            ``0.5*kimi_length + overlong(max_length=4096, cache=1024)``.
        key: the setting it is the value of, for messages.

    Raises:
        ValueError: it is no such sum, an option is wrong, or a name stands there twice.
        UnknownNameError: a name is registered by nobody.
        PluginImportError: the plug-in that owns a name fails to import.
    """
    if not text.strip():
        return ()
    made = []
    for term in parse_terms(key, text):
        try:
            if term.inner:
                raise TypeError(f"{term.name} takes options, as name=value")
            found = build("shaping", term.name, find("shaping", term.name), term.options)
            if not isinstance(found, Shaping):
                raise TypeError(f"{term.name!r}: its factory made {found!r}, which is no Shaping")
            if not math.isfinite(term.weight):
                raise ValueError(f"the weight ({term.weight}) of {term.name} must be finite")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key} ({text}): {error}") from error
        made.append(Weighted(term.weight, found))
    names = [weighted.shaping.name for weighted in made]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key} ({text}): {name!r} stands there twice")
    return tuple(made)

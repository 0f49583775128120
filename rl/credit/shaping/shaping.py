"""Shapings: named rewards of finished groups, added to the environment's rewards.

A shaping can read tokens and siblings; environments cannot. Each episode records its contributions
by name. Advantages use ``Trajectory.shaped_reward``.
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
    """A finished episode of a group, as the input of a shaping."""

    num_tokens: int
    """Number of sampled tokens, over all turns."""
    right: bool
    """Whether the episode succeeded."""
    reward: float
    """The episode's return from the environment."""
    budget: TokenBudget | None = None
    """Token budget in the prompt, or None if the prompt has none."""
    limit: int = 0
    """Maximum number of tokens that the episode could sample, given its observations. 0 if
    unknown."""
    episode: Trajectory | None = None
    """The trajectory, with texts and tokens."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in this process with which a shaping scores, for the memory plan and offloading."""

    path: str
    """A folder or a hub id."""
    offload: Callable[[], None]
    """Moves the model's weights to the host's memory until the shaping scores again. It does
    nothing if no model is loaded."""
    classifier: bool = True
    """Whether the model is a sequence classifier, not a causal language model."""
    device: str = "auto"
    """The model's device; "auto" for the GPU if there is one."""


@dataclass(frozen=True)
class Shaping:
    """One named contribution for each member of a group.

    Args:
        name: name of the recorded contribution.
        contribute: returns the added reward of each of a group's finished members, in order.
        budget: the kind of token budget that prompts must have, or "" if they need none.
        judges: whether the shaping judges quality. If so, its agreement with the environment's
            outcome is logged.
        by_group: whether ``contribute`` gets one group at a time. False passes the members of all
            groups at once, for speed.
        model: the model in this process with which the shaping scores, or None.
    """

    name: str
    contribute: Callable[[Sequence[Member]], Sequence[float]]
    budget: Literal["", "exact", "max"] = ""
    judges: bool = False
    by_group: bool = True
    model: LocalModel | None = None


@dataclass(frozen=True)
class Weighted:
    """A shaping with its weight."""

    weight: float
    shaping: Shaping

    def contributions(self, members: Sequence[Member]) -> list[float]:
        """The weighted contribution of each member.

        Raises:
            ValueError: the shaping does not return one finite number for each member.
        """
        name = self.shaping.name
        given = [self.weight * float(x) for x in self.shaping.contribute(members)]
        if len(given) != len(members) or not all(math.isfinite(x) for x in given):
            raise ValueError(f"shaping {name!r} gave {given} for {len(members)} episodes")
        return given


def make_shapings(text: str, key: str = "shaping") -> tuple[Weighted, ...]:
    """Parse a setting's value into shapings with weights; an empty text has none.

    Args:
        text: names with weights and options, in the syntax of ``envs.rewards``:
            ``0.5*kimi_length + overlong(max_length=4096, cache=1024)``.
        key: name of the setting, for messages.

    Raises:
        ValueError: the text has a syntax error, an option is wrong, or a name occurs twice.
        UnknownNameError: a name is not registered.
        PluginImportError: the plug-in of a name fails to import.
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
                raise TypeError(f"{term.name!r}: its factory returned {found!r}, not a Shaping")
            if not math.isfinite(term.weight):
                raise ValueError(f"the weight ({term.weight}) of {term.name} must be finite")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key} ({text}): {error}") from error
        made.append(Weighted(term.weight, found))
    names = [weighted.shaping.name for weighted in made]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key} ({text}): {name!r} occurs twice")
    return tuple(made)

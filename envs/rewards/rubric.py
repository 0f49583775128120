"""Rubrics: functions from an episode's transcript to named contributions to its reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A finished episode, as rubrics receive it."""

    question: str = ""
    """The first observation."""
    text: str
    """The agent's text with the inserted results. Rewards for formats read this text."""
    written: str
    """The text that the agent itself wrote."""
    answer: str | None = None
    """The answer that the environment found in the text, or None if there is none."""
    golds: tuple[str, ...] = ()
    """Right answers. Empty if comparing texts cannot decide whether an answer is right."""
    correct: float = 0.0
    """The environment's own verdict, from 0 to 1."""
    complete: bool = True
    """Whether the text is complete. False if generation reached a limit."""


class Rubric:
    """A pure function of a transcript, with known bounds of its values.

    :class:`Reward` wraps a function. :class:`WeightedSum`, :class:`Gate` and :class:`Sequential`
    combine rubrics.
    """

    names: tuple[str, ...]
    """Names of the contributions. Every result has all of them."""
    reward_range: tuple[float, float]
    """Lowest and highest sum of the contributions."""
    reward_floor: float
    """Highest sum that a text earns if it is empty, random, full of tags, or repeats the prompt."""

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The contributions of a transcript, by name."""
        raise NotImplementedError

    def total(self, transcript: Transcript) -> float:
        """The sum of the contributions."""
        return sum(self(transcript).values())


@dataclass(frozen=True)
class Reward(Rubric):
    """One named contribution.

    Args:
        name: the contribution's name in records.
        score: function from a transcript to its value.
        reward_range: least and greatest score.
        reward_floor: see :class:`Rubric`.
    """

    name: str
    score: Callable[[Transcript], float]
    reward_range: tuple[float, float] = (0.0, 1.0)
    reward_floor: float = 0.0
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", (self.name,))
        low, high = self.reward_range
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"reward_range ({self.reward_range}) of {self.name!r} must rise")

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The score of a transcript, under the reward's name.

        Raises:
            ValueError: the score is not a number, or is outside the declared range.
        """
        value = float(self.score(transcript))
        low, high = self.reward_range
        # This form of the comparison also rejects nan.
        if not low - _TOLERANCE <= value <= high + _TOLERANCE:
            raise ValueError(
                f"reward {self.name!r} gave {value}, outside its range {low:g}..{high:g}"
            )
        return {self.name: value}


class WeightedSum(Rubric):
    """A weighted sum of rubrics.

    Args:
        parts: pairs (weight, rubric); a negative weight turns a reward into a cost.

    Raises:
        ValueError: there are no parts, a weight is not finite, or two contributions share a name.
    """

    def __init__(self, parts: Sequence[tuple[float, Rubric]]) -> None:
        if not parts:
            raise ValueError("a weighted sum needs at least one rubric")
        for weight, part in parts:
            if not math.isfinite(weight):
                raise ValueError(f"the weight ({weight}) of {'+'.join(part.names)} must be finite")
        self.parts = tuple(parts)
        self.names = tuple(name for _, part in parts for name in part.names)
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"two contributions are called {name!r}: names must differ")
        ends = [sorted(weight * end for end in part.reward_range) for weight, part in parts]
        self.reward_range = (sum(low for low, _ in ends), sum(high for _, high in ends))
        # A penalty (a negative weight) costs at least its part's lowest value.
        floors = [
            weight * (part.reward_floor if weight > 0 else part.reward_range[0])
            for weight, part in parts
        ]
        self.reward_floor = sum(floors)

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The weighted contributions of all parts."""
        return {
            name: weight * value
            for weight, part in self.parts
            for name, value in part(transcript).items()
        }


class Gate(Rubric):
    """A rubric that counts only if its sum reaches a threshold; otherwise contributions are 0.

    Args:
        rubric: the rubric whose sum is compared with the threshold.
        at_least: the threshold.
    """

    def __init__(self, rubric: Rubric, at_least: float = 1.0) -> None:
        self.rubric = rubric
        self.at_least = at_least
        self.names = rubric.names
        low, high = rubric.reward_range
        reached = high >= at_least
        self.reward_range = (min(0.0, max(low, at_least)), max(0.0, high) if reached else 0.0)
        self.reward_floor = (
            max(0.0, rubric.reward_floor) if rubric.reward_floor >= at_least else 0.0
        )

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The rubric's contributions, or zeros below the threshold."""
        given = self.rubric(transcript)
        enough = sum(given.values()) >= self.at_least - _TOLERANCE
        return given if enough else dict.fromkeys(given, 0.0)


class Sequential(Rubric):
    """A rubric behind conditions: it counts only if every condition earns a positive reward.

    Args:
        rubrics: the conditions, then the rubric. If a condition earns 0 or less, all contributions
            are 0 and later rubrics, for example a costly judge, are not evaluated.

    Raises:
        ValueError: there are no rubrics.
    """

    def __init__(self, *rubrics: Rubric) -> None:
        if not rubrics:
            raise ValueError("a sequence needs at least one rubric")
        *self.conditions, self.last = rubrics
        self.names = self.last.names
        low, high = self.last.reward_range
        floor = self.last.reward_floor
        if self.conditions:
            low, high, floor = min(0.0, low), max(0.0, high), max(0.0, floor)
            if any(condition.reward_floor <= 0 for condition in self.conditions):
                floor = 0.0
        self.reward_range, self.reward_floor = (low, high), floor

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The last rubric's contributions, or zeros if a condition failed."""
        if all(condition.total(transcript) > 0 for condition in self.conditions):
            return self.last(transcript)
        return dict.fromkeys(self.names, 0.0)

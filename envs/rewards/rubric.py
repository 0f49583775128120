"""Rubrics: from the transcript of one episode to named contributions that add up to its reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a rubric may read of an episode that is over."""

    question: str = ""
    """The first observation."""
    text: str
    """The agent's words with what it read in their place: what a format is about."""
    written: str
    """The agent's own words alone."""
    answer: str | None = None
    """The answer as the environment reads it out of the text; None: there is none."""
    golds: tuple[str, ...] = ()
    """Right answers; none where right and wrong are not a matter of text."""
    correct: float = 0.0
    """The environment's own verdict, from 0 to 1."""
    complete: bool = True
    """Whether the text came to its own end, and did not run into a limit."""


class Rubric:
    """A pure function of a transcript, and what is known of its values.

    :class:`Reward` makes one of a function; :class:`WeightedSum`, :class:`Gate` and
    :class:`Sequential` make one of others.
    """

    names: tuple[str, ...]
    """The contributions, all of them there every time."""
    reward_range: tuple[float, float]
    """Least and greatest sum of the contributions."""
    reward_floor: float
    """The most that an empty, random, parroting or tag-spamming text may earn."""

    def __call__(self, transcript: Transcript) -> dict[str, float]:
        """The named contributions."""
        raise NotImplementedError

    def total(self, transcript: Transcript) -> float:
        """Their sum."""
        return sum(self(transcript).values())


@dataclass(frozen=True)
class Reward(Rubric):
    """One named contribution.

    Args:
        name: under which it is recorded.
        score: what a transcript is worth.
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
        """The score under its name.

        Raises:
            ValueError: it is no number, or outside the declared range.
        """
        value = float(self.score(transcript))
        low, high = self.reward_range
        # Written so that nan fails.
        if not low - _TOLERANCE <= value <= high + _TOLERANCE:
            raise ValueError(
                f"reward {self.name!r} gave {value}, outside its range {low:g}..{high:g}"
            )
        return {self.name: value}


class WeightedSum(Rubric):
    """Contributions of several rubrics, each times its weight.

    Args:
        parts: (weight, rubric); a negative weight makes a cost of a reward.

    Raises:
        ValueError: there are none, a weight is not finite, or two contributions share a name.
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
        """Every part's contributions, weighted."""
        return {
            name: weight * value
            for weight, part in self.parts
            for name, value in part(transcript).items()
        }


class Gate(Rubric):
    """A rubric that pays nothing below a threshold.

    Args:
        rubric: whose contributions count where they add up to ``at_least``; else all are 0.
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
        """The rubric's contributions, or zeros."""
        given = self.rubric(transcript)
        enough = sum(given.values()) >= self.at_least - _TOLERANCE
        return given if enough else dict.fromkeys(given, 0.0)


class Sequential(Rubric):
    """Conditions in order, then what counts: the last rubric, where each before it earned some.

    Args:
        rubrics: at the first that earns nothing (0 or less) it is over, and the last one's
            contributions are all 0. Nothing behind it is asked, a costly judge for example.

    Raises:
        ValueError: there are none.
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
        """The last rubric's contributions, or zeros."""
        if all(condition.total(transcript) > 0 for condition in self.conditions):
            return self.last(transcript)
        return dict.fromkeys(self.names, 0.0)

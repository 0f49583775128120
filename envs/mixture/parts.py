"""The parts of a mixture, parsed from a text, and their tasks, interleaved."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from envs.datasets import kept_while_unchanged
from envs.datasets.options import split_to_evaluate
from envs.datasets.splits import ALL
from envs.options import EnvOptions, Tasks
from envs.registration import env_type, options_of, resolve

MAX_PERIOD = 1000
"""Maximum length of the repeating sequence of parts. Weights with a large common denominator need
a longer sequence, and are rejected."""
_PART = re.compile(
    r"\s*(?:(?P<weight>\d+(?:\.\d+)?)\s*\*\s*)?"
    r"(?P<name>[a-z0-9][a-z0-9_/-]*)"
    r'(?:\((?P<options>(?:"[^"]*"|[^()"])*)\))?\s*(?:\+|$)'
)
_OPTION = re.compile(r'\s*(?P<key>[a-z_0-9]+)\s*=\s*(?P<value>"[^"]*"|[^,"]*?)\s*(?:,|$)')


@dataclass(frozen=True, slots=True)
class Part:
    """An environment in a mixture."""

    name: str
    """The part as written in ``of``, without its weight."""
    weight: Fraction
    env_id: str
    options: EnvOptions


@dataclass(frozen=True, kw_only=True)
class MixOptions(EnvOptions):
    """Options of a mixture: its environments and their weights.

    Evaluations use split="all". Under it, a part whose rows name no split plays every row; any
    other part plays its test tasks.
    """

    composed: ClassVar[bool] = True
    of: str = "search-qa + math"
    """Environments with weights and options: "2*search-qa(hops=2) + knights-knaves(people=4)"."""
    max_turns: int = 0
    """Maximum number of actions per episode; 0 uses the maximum of all parts. Parts keep their own
    limits as well."""
    step_timeout_s: float = 0.0
    """Seconds that a step may wait before it fails; 0 uses the maximum of all parts. Parts keep
    their own limits as well."""

    def __post_init__(self) -> None:
        parts = self.parts()
        for key in ("max_turns", "step_timeout_s"):
            value, most = getattr(self, key), max(getattr(part.options, key) for part in parts)
            if 0 < value < most:
                raise ValueError(f"{key} ({value}) must be at least a part's own, {most}")
            object.__setattr__(self, key, value or most)
        super().__post_init__()

    def parts(self) -> tuple[Part, ...]:
        """The environments that the option ``of`` lists, with the mixture's split and seed.

        Raises:
            ValueError: ``of`` lists no part, lists a part twice, or gives a part invalid options.
            UnknownNameError: ``of`` names an unknown environment.
        """
        return _parse(self.of, self.split, self.seed, self.token_budget)

    def parts_without_split(self) -> list[str]:
        """Names of the parts whose tasks are rows that name no split.

        Raises:
            ValueError: a row cannot be a task.
        """
        return [part.name for part in self.parts() if _split_of(part) == ALL]


@kept_while_unchanged
def _parse(of: str, split: str, seed: int, token_budget: str) -> tuple[Part, ...]:
    own = "test" if split == ALL else split
    shared = {"split": own, "seed": seed, "token_budget": token_budget}
    parts: list[Part] = []
    place = 0
    while place < len(of):
        found = _PART.match(of, place)
        if found is None:
            raise ValueError(
                f"of ({of}) must be a sum such as 2*search-qa(hops=2) + math: cannot read "
                f"{of[place:].strip()!r}"
            )
        place = found.end()
        written = found["options"] or ""
        name = f"{found['name']}({written.strip()})" if written.strip() else found["name"]
        env_id = resolve(found["name"])
        if issubclass(env_type(env_id).Options, MixOptions):
            raise ValueError(f"of ({of}): a mixture has no mixtures among its parts")
        try:
            options = options_of(env_id, shared | _typed(env_id, written))
            if split == ALL:
                options = replace(options, split=split_to_evaluate(env_type(env_id), options))
        except (ValueError, TypeError) as error:
            raise ValueError(f"of: {name}: {error}") from error
        parts.append(Part(name, Fraction(found["weight"] or 1), env_id, options))
    if not parts or of.rstrip().endswith("+"):
        raise ValueError(f"of ({of!r}) must name environments, such as 2*search-qa + math")
    names = [part.name for part in parts]
    for part in parts:
        if names.count(part.name) > 1:
            raise ValueError(f"of ({of}): {part.name} stands there twice: give it a weight of 2")
        if part.weight == 0:
            raise ValueError(f"of ({of}): the weight of {part.name} must be above 0")
    if split == ALL and not any(part.options.split == ALL for part in parts):
        raise ValueError(
            f"split ('all') is for rows that name no split, and no part of ({of}) has such rows: "
            f"choose train, validation or test"
        )
    if len(pattern_of([part.weight for part in parts])) > MAX_PERIOD:
        raise ValueError(f"of ({of}): weights must be like small whole numbers, 2*a + 3*b")
    return tuple(parts)


def _split_of(part: Part) -> str:
    return split_to_evaluate(env_type(part.env_id), part.options)


def _typed(env_id: str, written: str) -> dict[str, Any]:
    """The options of a part, parsed from ``key=value, key="value"``."""
    hints = typing.get_type_hints(env_type(env_id).Options)
    values: dict[str, Any] = {}
    place = 0
    while written[place:].strip():
        found = _OPTION.match(written, place)
        if found is None:
            raise ValueError(f"cannot read {written[place:].strip()!r}: give key=value, key=value")
        place = found.end()
        key, text = found["key"], found["value"].strip('"')
        if key == "split":
            raise ValueError("split is the mixture's")
        hint = hints.get(key, str)
        if hint is bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{key} ({text}) must be true or false")
            values[key] = text.lower() == "true"
        else:
            values[key] = hint(text) if hint in (int, float) else text
    return values


def pattern_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """The shortest sequence of parts in which each part has its share, evenly spread.

    Each position goes to the part that is furthest behind its share (smooth weighted round-robin).
    """
    scale = math.lcm(*(weight.denominator for weight in weights))
    counts = [int(weight * scale) for weight in weights]
    shared = math.gcd(*counts)
    counts = [count // shared for count in counts]
    total = sum(counts)
    if total > MAX_PERIOD:
        return tuple(range(MAX_PERIOD + 1))
    behind = [0] * len(counts)
    sequence = []
    for _ in range(total):
        behind = [debt + count for debt, count in zip(behind, counts, strict=True)]
        chosen = behind.index(max(behind))
        behind[chosen] -= total
        sequence.append(chosen)
    return tuple(sequence)


@dataclass(frozen=True, slots=True)
class MixTask:
    """A task of one part.

    The ``repr`` shows the part's task instead of ``index``, because tasks of different splits have
    equal indices.
    """

    part: int
    index: int
    """Index among the part's tasks."""
    tasks: Tasks[Any] = field(compare=False)
    """The part's tasks."""

    def __repr__(self) -> str:
        return f"MixTask({self.part}, {self.tasks[self.index]!r})"


class MixTasks:
    """The parts' tasks, interleaved by their weights.

    The train split has all tasks of every part, and repeats the tasks of small parts. In the other
    splits no task repeats. Such a split ends when the first part has no task left. If ``whole``
    marks parts, the split ends when all marked parts have no task left.

    Args:
        tasks: the tasks of each part.
        weights: the weights of the parts.
        again: whether tasks may repeat.
        whole: for each part, whether all its tasks must occur; empty if no part requires that.
    """

    def __init__(
        self,
        tasks: Sequence[Tasks[Any]],
        weights: Sequence[Fraction],
        *,
        again: bool,
        whole: Sequence[bool] = (),
    ) -> None:
        self._tasks = tasks
        self._sizes = sizes = [len(own) for own in tasks]
        self._pattern = pattern_of(weights)
        self._counts = [self._pattern.count(part) for part in range(len(sizes))]
        self._before = [self._pattern[:i].count(part) for i, part in enumerate(self._pattern)]
        self._places: tuple[int, ...] | None = None
        """If parts must be complete: each task's position in the endless sequence of parts."""
        if any(whole):
            self._places = _places(self._pattern, tuple(sizes), tuple(whole))
            self._count = len(self._places)
            return
        shares = list(zip(sizes, self._counts, strict=True))
        blocks = (
            max(-(-size // count) for size, count in shares)
            if again
            else min(size // count for size, count in shares)
        )
        self._count = blocks * len(self._pattern)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> MixTask:
        """Task ``index`` of the mixture."""
        if not 0 <= index < self._count:
            raise IndexError(f"task {index}: 0 to {self._count - 1}")
        if self._places is not None:
            index = self._places[index]
        block, place = divmod(index, len(self._pattern))
        part = self._pattern[place]
        own = block * self._counts[part] + self._before[place]
        return MixTask(part, own % self._sizes[part], self._tasks[part])


@lru_cache(maxsize=16)
def _places(
    pattern: tuple[int, ...], sizes: tuple[int, ...], whole: tuple[bool, ...]
) -> tuple[int, ...]:
    """Positions of tasks in the repeated pattern, up to the last task of the parts in ``whole``.

    Positions of parts without tasks left are skipped. The result is cached, because every episode
    makes an environment.
    """
    left = [size if kept else 0 for size, kept in zip(sizes, whole, strict=True)]
    played = [0] * len(sizes)
    places = list[int]()
    place = 0
    while any(played[part] < left[part] for part in range(len(sizes))):
        part = pattern[place % len(pattern)]
        if played[part] < sizes[part]:
            places.append(place)
        played[part] += 1
        place += 1
    return tuple(places)

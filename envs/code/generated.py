"""Millions of small programming tasks, with disjoint splits.

A composition is a choice of filters, maps and a reduction, without their constants. A hash of its
name assigns each composition to one split. Therefore no composition of the test split is in the
training data, for any seed. Task ``i`` is computed from (split, i, seed) alone; nothing is scanned
or stored.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations, permutations, product
from typing import NamedTuple

from envs.code.grammar import (
    CONSTANTS,
    ENTRY_POINT,
    FILTERS,
    MAPS,
    REDUCTIONS,
    Recipe,
    Step,
    Value,
)
from envs.code.task import CodeTask
from tools.sandbox import CallTest

PROMPT = f"Write {ENTRY_POINT}(xs) in Python: "
"""Start of every prompt."""
NUM_TASKS = {"train": 1_000_000, "validation": 1024, "test": 4096}
NUM_WITHHELD_TASKS = {"train": 1_000_000, "validation": 128, "test": 512}
NUM_PUBLIC, NUM_HIDDEN = 3, 8
MIN_DISTINCT_OUTPUTS = 6
"""Minimum number of different outputs of a task's tests. With fewer, a constant could pass."""

# Pairs of filters of which one implies or excludes the other, for most constants or all.
_REDUNDANT = {
    ("even", "odd"),
    ("positive", "negative"),
    ("positive", "above"),
    ("negative", "above"),
    ("negative", "below"),
    ("above", "below"),
}
# A kind (how many filters and maps, and which reduction) has about this many slots in one pass,
# however many compositions and constants it has: short tasks are as common as long ones.
_SLOTS_PER_KIND = 2000
# Four of five candidates with these are dropped, because their outputs hardly differ.
_SELDOM_GOOD = {"largest": 4, "smallest": 4}
_WITH_CONSTANT = {name for name in [*FILTERS, *MAPS] if Step(name).takes_constant}
_NUMBERS = range(-9, 21)
# More than half of the candidates are good, or a third where a constant is withheld.
_MOST_ATTEMPTS = 1000
# The maps whose constant a single output can show, and the value that they must act on for it.
_SHOWS_AT = {"add": 0, "subtract": 0, "multiply": 1}


class Composition(NamedTuple):
    """A recipe without its constants."""

    filters: tuple[str, ...]
    maps: tuple[str, ...]
    reduction: str

    @property
    def split(self) -> str:
        """The composition's split. A fixed hash assigns 10% to test and 10% to validation."""
        name = f"{'+'.join(self.filters)}|{'+'.join(self.maps)}|{self.reduction}"
        bucket = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) % 10
        return {0: "test", 1: "validation"}.get(bucket, "train")

    @property
    def kind(self) -> tuple[int, int, str]:
        """Number of filters and maps, and the reduction."""
        return len(self.filters), len(self.maps), self.reduction

    @property
    def can_withhold(self) -> bool:
        """Whether tasks can withhold the constant of the last map, because a test can reveal it.

        The composition must have at most one filter. Such a task is simple, and mainly tests
        whether the agent reads test results.
        """
        return len(self.filters) < 2 and bool(self.maps) and self.maps[-1] in _SHOWS_AT

    @property
    def num_recipes(self) -> int:
        """Number of possible choices of constants."""
        num_constants = len(_WITH_CONSTANT.intersection(self.filters + self.maps))
        return int(len(CONSTANTS) ** num_constants)

    def recipe(self, number: int) -> Recipe:
        """The recipe with the ``number``-th choice of constants."""
        digits = iter(_digits(number))
        bare = Recipe(tuple(map(Step, self.filters)), tuple(map(Step, self.maps)), self.reduction)
        return bare.with_constants(lambda _: CONSTANTS[next(digits)])


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """One generated task: its description and its tests."""

    recipe: Recipe
    description: str
    """The recipe in English, with ``?`` for a withheld constant."""
    public: tuple[tuple[list[int], Value], ...]
    """(argument, expected output) pairs that feedback can show; arguments are short lists."""
    hidden: tuple[tuple[list[int], Value], ...]
    """(argument, expected output) pairs that only the grader sees; the first argument is []."""

    def as_code_task(self) -> CodeTask:
        """The task as a :class:`CodeTask`."""

        def tests(pairs: tuple[tuple[list[int], Value], ...]) -> tuple[CallTest, ...]:
            return tuple(CallTest((xs,), expected) for xs, expected in pairs)

        return CodeTask(
            prompt=PROMPT + self.description,
            entry_point=ENTRY_POINT,
            public=tests(self.public),
            hidden=tests(self.hidden),
            reference=self.recipe.program(),
        )


class GeneratedTasks:
    """The tasks of one split.

    Args:
        split: "train", "validation" or "test".
        seed: selects constants and test inputs. Every seed has the same compositions.
        withhold: omit the constant of the last map from the description, in tasks of at most one
            filter. A first attempt must guess it. The expected output of the first public test
            reveals it: the output is the constant or its negative.
    """

    def __init__(self, split: str, seed: int = 0, *, withhold: bool = False) -> None:
        self.split = split
        self.seed = seed
        self.withhold = withhold

    def __len__(self) -> int:
        return (NUM_WITHHELD_TASKS if self.withhold else NUM_TASKS)[self.split]

    def __getitem__(self, index: int) -> CodeTask:
        """Task ``index`` as a :class:`CodeTask`.

        Raises:
            IndexError: the index is out of range.
        """
        return self.draw(index).as_code_task()

    def draw(self, index: int) -> GeneratedTask:
        """Task ``index`` as a :class:`GeneratedTask`, which also has the recipe of its program.

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of split {self.split!r}: 0 to {len(self) - 1}")
        for recipe in self._candidates(index):
            task = draw_tests(recipe, self.seed, withhold=self.withhold)
            if task is not None:
                return task
        raise AssertionError(f"no good task for index {index}: the split is too small")

    def _candidates(self, index: int) -> Iterator[Recipe]:
        """Recipes for a task index, in order of preference; no two indices share a recipe.

        All pairs of a composition and a choice of constants form a shuffled list. Position ``p`` of
        the list belongs to index ``p % len(self)``. Each further pass over the list has its own
        order and constants.
        """
        compositions, starts = _table(self.split, self.withhold)
        for attempt in range(_MOST_ATTEMPTS):
            lap, place = divmod(index + attempt * len(self), starts[-1])
            slot = _shuffled(place, starts[-1], f"{self.seed}/{self.split}/{lap}")
            row = bisect_right(starts, slot) - 1
            composition = compositions[row]
            number = slot - starts[row] + lap * (starts[row + 1] - starts[row])
            size = composition.num_recipes
            # Only the training split repeats a recipe, after all its constants.
            if number < size or self.split == "train":
                yield composition.recipe(_shuffled(number % size, size, f"{self.seed}/{row}"))


def draw_tests(recipe: Recipe, seed: int, *, withhold: bool = False) -> GeneratedTask | None:
    """The recipe's task with its tests, or None if the recipe makes no good task.

    A good task has at least ``MIN_DISTINCT_OUTPUTS`` different outputs. In addition, the omission
    of any step makes some hidden test fail. Among random inputs, those are preferred on which a
    filter's constant that is wrong by one also changes the output.
    """
    description = (recipe.withholding(recipe.maps[-1]) if withhold else recipe).describe()
    rng = random.Random(f"{seed}/{recipe.describe()}")
    keeps = Recipe(recipe.filters, (), "list")
    kept = keeps.run(_NUMBERS)
    if not isinstance(kept, list) or not kept:
        return None
    short = [_draw_list(rng, kept, 1, 3) for _ in range(12)]
    long = [_draw_list(rng, kept, 2, 8) for _ in range(16)]
    omissions = [recipe.without(step) for step in recipe.steps]
    mistakes = omissions + list(_near_misses(recipe))
    public = _separating(short, recipe, mistakes, NUM_PUBLIC)
    hidden = [[], *_separating(long, recipe, mistakes, NUM_HIDDEN - 1)]
    if withhold:
        probe = _probe(recipe)
        if probe is None:
            return None
        public = [probe, *public[:-1]]
    outputs = {repr(recipe.run(xs)) for xs in public + hidden}
    inert = any(all(m.run(xs) == recipe.run(xs) for xs in hidden) for m in omissions)
    if inert or len(outputs) < MIN_DISTINCT_OUTPUTS:
        return None
    return GeneratedTask(
        recipe,
        description,
        tuple((xs, recipe.run(xs)) for xs in public),
        tuple((xs, recipe.run(xs)) for xs in hidden),
    )


def _near_misses(recipe: Recipe) -> Iterator[Recipe]:
    for index, (name, constant) in enumerate(recipe.filters):
        for near in (constant - 1, constant + 1) if constant is not None else ():
            moved = (*recipe.filters[:index], Step(name, near), *recipe.filters[index + 1 :])
            yield Recipe(moved, recipe.maps, recipe.reduction)


def _separating(
    inputs: Sequence[list[int]], recipe: Recipe, mistakes: Sequence[Recipe], count: int
) -> list[list[int]]:
    """``count`` inputs for which many of ``mistakes`` have another output than the recipe.

    Each input is chosen to expose as many mistakes as possible that earlier inputs do not expose.
    """
    outputs = [recipe.run(xs) for xs in inputs]
    caught = [
        {i for i, mistake in enumerate(mistakes) if mistake.run(xs) != output}
        for xs, output in zip(inputs, outputs, strict=True)
    ]
    left = set(range(len(mistakes)))
    remaining = list(range(len(inputs)))
    chosen: list[list[int]] = []
    for _ in range(count):
        best = max(remaining, key=lambda place: len(caught[place] & left))
        remaining.remove(best)
        left -= caught[best]
        chosen.append(inputs[best])
    return chosen


def _probe(recipe: Recipe) -> list[int] | None:
    """A one-element list that reveals the last map's constant.

    For this list, the last map returns the constant or the negated constant. None if no such list
    exists.
    """
    *before, last = recipe.maps
    inner = Recipe(recipe.filters, tuple(before), "list")
    for x in sorted(range(-20, 41), key=abs):
        if inner.run([x]) == [_SHOWS_AT[last.name]]:
            return [x]
    return None


def _draw_list(rng: random.Random, kept: list[int], shortest: int, longest: int) -> list[int]:
    """A random list. At least half of its numbers, on average, come from ``kept``.

    ``kept`` holds the numbers that pass the filters; few random numbers pass them.
    """
    length = rng.randint(shortest, longest)
    return [rng.choice(kept if rng.random() < 0.5 else _NUMBERS) for _ in range(length)]


@cache
def _table(split: str, withhold: bool) -> tuple[list[Composition], list[int]]:
    """A split's compositions, and the index of each composition's first slot.

    A slot is a place for one task. Each composition has several consecutive slots, one for each
    choice of constants up to a limit. A last index, the total number of slots, follows.
    """
    filter_sets = [
        chosen
        for count in range(3)
        for chosen in combinations(FILTERS, count)
        if chosen not in _REDUNDANT
    ]
    map_lists = [chosen for count in range(3) for chosen in permutations(MAPS, count)]
    candidates = [
        composition
        for parts in product(filter_sets, map_lists, REDUCTIONS)
        if ((composition := Composition(*parts)).filters or composition.maps)
        and (not withhold or composition.can_withhold)
    ]
    kinds = Counter(composition.kind for composition in candidates)
    compositions = [composition for composition in candidates if composition.split == split]
    sizes = [
        min(
            composition.num_recipes,
            _SLOTS_PER_KIND * _SELDOM_GOOD.get(composition.reduction, 1) // kinds[composition.kind],
        )
        for composition in compositions
    ]
    return compositions, [0, *accumulate(sizes)]


def _digits(number: int) -> Iterator[int]:
    while True:
        number, digit = divmod(number, len(CONSTANTS))
        yield digit


def _shuffled(place: int, size: int, key: str) -> int:
    """The position of ``place`` in a pseudo-random permutation of ``range(size)``.

    Each round maps the enclosing power of two one to one: it multiplies by an odd number and folds
    the high half onto the low half. Results outside the range are permuted again.
    """
    bits = (size - 1).bit_length()
    mask = (1 << bits) - 1
    words = hashlib.blake2b(key.encode(), digest_size=48).digest()
    keys = [int.from_bytes(words[i : i + 8]) for i in range(0, 48, 8)]
    while True:
        for multiplier, offset in zip(keys[::2], keys[1::2], strict=True):
            place = (place * (multiplier | 1) + offset) & mask
            place ^= place >> (bits // 2 + 1)
        if place < size:
            return place

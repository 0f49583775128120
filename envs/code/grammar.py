"""The language of generated tasks: list functions in English, in Python, and as objects.

A recipe is up to two filters, up to two maps and one reduction. :func:`parse` reads a description
back, so the text alone is enough for an agent that knows the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

ENTRY_POINT = "f"
"""The name of every generated function."""
CONSTANTS = range(2, 10)
"""Range of the constants of a recipe."""
WITHHELD = "?"
"""Placeholder in a description for a withheld constant."""

Value = int | list[int]


class Filter(NamedTuple):
    """A condition on ``x``; ``{k}`` in its texts is its constant."""

    english: str
    code: str
    keeps: Callable[[int, int], bool]


class Map(NamedTuple):
    """An operation on each element; ``{x}`` in its code stands for the operand."""

    english: str
    code: str
    apply: Callable[[int, int], int]


class Reduction(NamedTuple):
    """The last operation on the list; ``{xs}`` in its code is the list's expression."""

    english: str
    code: str
    apply: Callable[[list[int]], Value]


FILTERS: dict[str, Filter] = {
    "even": Filter("keep even numbers", "x % 2 == 0", lambda x, k: x % 2 == 0),
    "odd": Filter("keep odd numbers", "x % 2 == 1", lambda x, k: x % 2 == 1),
    "positive": Filter("keep positive numbers", "x > 0", lambda x, k: x > 0),
    "negative": Filter("keep negative numbers", "x < 0", lambda x, k: x < 0),
    "above": Filter("keep numbers above {k}", "x > {k}", lambda x, k: x > k),
    "below": Filter("keep numbers below {k}", "x < {k}", lambda x, k: x < k),
    "multiple": Filter("keep multiples of {k}", "x % {k} == 0", lambda x, k: x % k == 0),
}
MAPS: dict[str, Map] = {
    "add": Map("add {k} to each", "{x} + {k}", lambda x, k: x + k),
    "subtract": Map("subtract {k} from each", "{x} - {k}", lambda x, k: x - k),
    "multiply": Map("multiply each by {k}", "{x} * {k}", lambda x, k: x * k),
    "divide": Map("floor divide each by {k}", "{x} // {k}", lambda x, k: x // k),
    "remainder": Map("take each modulo {k}", "{x} % {k}", lambda x, k: x % k),
    "square": Map("square each", "{x} ** 2", lambda x, k: x**2),
}
REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("return the sum", "sum({xs})", sum),
    "largest": Reduction(
        "return the largest or 0", "max({xs}, default=0)", lambda xs: max(xs, default=0)
    ),
    "smallest": Reduction(
        "return the smallest or 0", "min({xs}, default=0)", lambda xs: min(xs, default=0)
    ),
    "list": Reduction("return the list", "{xs}", lambda xs: xs),
    "sorted": Reduction("return the list sorted", "sorted({xs})", sorted),
    "reversed": Reduction("return the list reversed", "{xs}[::-1]", lambda xs: xs[::-1]),
    "first two": Reduction("return the first two", "{xs}[:2]", lambda xs: xs[:2]),
}


class Step(NamedTuple):
    """A filter or map by name, with its constant.

    The constant is None if the step has none, or if it is withheld.
    """

    name: str
    constant: int | None = None

    @property
    def _table_row(self) -> Filter | Map:
        return FILTERS[self.name] if self.name in FILTERS else MAPS[self.name]

    @property
    def takes_constant(self) -> bool:
        """Whether the step has a constant."""
        return "{k}" in self._table_row.english

    @property
    def english(self) -> str:
        """The step as a clause."""
        constant = WITHHELD if self.constant is None else self.constant
        return self._table_row.english.format(k=constant)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One list function: its filters in the table's order, its maps in order of application."""

    filters: tuple[Step, ...]
    maps: tuple[Step, ...]
    reduction: str

    @property
    def steps(self) -> tuple[Step, ...]:
        """Filters, then maps."""
        return self.filters + self.maps

    def describe(self) -> str:
        """The English description: clauses joined by commas."""
        clauses = [step.english for step in self.steps]
        return ", ".join([*clauses, REDUCTIONS[self.reduction].english])

    def program(self) -> str:
        """The one-line Python function.

        Raises:
            ValueError: a constant is withheld.
        """
        self._require_constants()
        expression = "x"
        for step in self.maps:
            inner = expression if expression == "x" else f"({expression})"
            expression = MAPS[step.name].code.format(x=inner, k=step.constant)
        conditions = [FILTERS[step.name].code.format(k=step.constant) for step in self.filters]
        condition = f" if {' and '.join(conditions)}" if conditions else ""
        elements = f"[{expression} for x in xs{condition}]"
        return (
            f"def {ENTRY_POINT}(xs): return {REDUCTIONS[self.reduction].code.format(xs=elements)}"
        )

    def run(self, xs: Sequence[int]) -> Value:
        """The function's result for ``xs``.

        Raises:
            ValueError: a constant is withheld.
        """
        self._require_constants()
        kept = list(xs)
        # A step without a constant ignores the 0.
        for name, constant in self.filters:
            keeps = FILTERS[name].keeps
            kept = [x for x in kept if keeps(x, constant or 0)]
        for name, constant in self.maps:
            apply = MAPS[name].apply
            kept = [apply(x, constant or 0) for x in kept]
        return REDUCTIONS[self.reduction].apply(kept)

    def without(self, step: Step) -> Recipe:
        """The recipe without ``step``."""
        return replace(
            self,
            filters=tuple(other for other in self.filters if other != step),
            maps=tuple(other for other in self.maps if other != step),
        )

    def with_constants(self, choose: Callable[[Step], int | None]) -> Recipe:
        """The recipe with ``choose(step)`` as the constant of each step that has one."""

        def chosen(step: Step) -> Step:
            return step._replace(constant=choose(step)) if step.takes_constant else step

        return replace(
            self, filters=tuple(map(chosen, self.filters)), maps=tuple(map(chosen, self.maps))
        )

    def filled(self, constant: int) -> Recipe:
        """The recipe with ``constant`` in place of withheld constants."""
        return self.with_constants(
            lambda step: constant if step.constant is None else step.constant
        )

    def withholding(self, step: Step) -> Recipe:
        """The recipe with the constant of ``step`` withheld."""
        return self.with_constants(lambda other: None if other == step else other.constant)

    @property
    def withheld(self) -> bool:
        """Whether a constant is withheld."""
        # In this order: each draw of a task asks thousands of times.
        return any(step.constant is None and step.takes_constant for step in self.steps)

    def _require_constants(self) -> None:
        if self.withheld:
            raise ValueError(f"{self.describe()!r} withholds a constant: use filled(k) first")


def _readers(table: dict[str, Filter] | dict[str, Map]) -> list[tuple[str, re.Pattern[str]]]:
    number = rf"(?P<k>[0-9]+|{re.escape(WITHHELD)})"
    return [
        (name, re.compile(re.escape(row.english).replace(re.escape("{k}"), number)))
        for name, row in table.items()
    ]


_READERS = _readers(FILTERS) + _readers(MAPS)
_REDUCTION_NAMES = {row.english: name for name, row in REDUCTIONS.items()}


def parse(description: str) -> Recipe:
    """The recipe of a description: the inverse of :meth:`Recipe.describe`.

    Raises:
        ValueError: a clause does not belong to the grammar.
    """
    *clauses, last = description.split(", ")
    steps = [_parse_step(clause) for clause in clauses]
    if last not in _REDUCTION_NAMES:
        raise ValueError(f"clause {last!r} returns nothing: expected one of {[*_REDUCTION_NAMES]}")
    return Recipe(
        tuple(step for step in steps if step.name in FILTERS),
        tuple(step for step in steps if step.name in MAPS),
        _REDUCTION_NAMES[last],
    )


def _parse_step(clause: str) -> Step:
    for name, reader in _READERS:
        match = reader.fullmatch(clause)
        if match:
            constant = match.groupdict().get("k")
            return Step(name, None if constant in (None, WITHHELD) else int(constant))
    raise ValueError(f"clause {clause!r} is no filter and no map of the grammar")

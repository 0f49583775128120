"""Small programs of one to four modules, composed of a condition, a step and a reduction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAIN = "main.py"
"""The module with the function that the tests call."""
MAX_FILES = 4
NAMES = (
    *("total", "report", "score", "gather", "measure", "collect", "summary", "rate"),
    *("digest", "tally", "assess", "result_of", "reckon", "survey", "condense", "figure"),
)
"""Names of the function that the tests call."""


class Part(NamedTuple):
    """One part of a program: its words and its code. ``{c}`` stands for a constant."""

    phrase: str
    code: str


class Reduction(NamedTuple):
    """How a program combines its values: the words, the start, and the update with ``{value}``."""

    phrase: str
    start: str
    update: str


class Family(NamedTuple):
    """Parts for one type of items."""

    items: str
    """What ``xs`` holds, in words."""
    conditions: Mapping[str, Part]
    steps: Mapping[str, Part]
    reductions: Mapping[str, Reduction]


_LIST = Reduction("the list of", "[]", "result.append({value})")
_LAST = Reduction("the last of", "None", "result = {value}")
FAMILIES: Mapping[str, Family] = {
    "numbers": Family(
        "numbers",
        {
            "above": Part("above k", "x > k"),
            "below": Part("below k", "x < k"),
            "least": Part("of at least k", "x >= k"),
            "most": Part("of at most k", "x <= k"),
            "multiple": Part("divisible by k", "x % k == 0"),
            "remainder": Part("not divisible by k", "x % k != 0"),
            "other": Part("other than k", "x != k"),
        },
        {
            "same": Part("x", "x"),
            "times": Part("x times {c}", "x * {c}"),
            "plus": Part("x plus {c}", "x + {c}"),
            "minus": Part("x minus {c}", "x - {c}"),
            "from": Part("x minus k", "x - k"),
            "twice": Part("x plus k", "x + k"),
            "square": Part("x squared", "x * x"),
        },
        {
            "sum": Reduction("the sum of", "0", "result += {value}"),
            "product": Reduction("the product of", "1", "result *= {value}"),
            "largest": Reduction("the largest of k and", "k", "result = max(result, {value})"),
            "smallest": Reduction("the smallest of k and", "k", "result = min(result, {value})"),
            "list": _LIST,
            "last": _LAST,
        },
    ),
    "words": Family(
        "texts",
        {
            "longer": Part("longer than k letters", "len(x) > k"),
            "shorter": Part("shorter than k letters", "len(x) < k"),
            "least": Part("of at least k letters", "len(x) >= k"),
            "most": Part("of at most k letters", "len(x) <= k"),
            "other": Part("not of k letters", "len(x) != k"),
        },
        {
            "same": Part("x", "x"),
            "capitals": Part("x in capitals", "x.upper()"),
            "reversed": Part("x reversed", "x[::-1]"),
            "start": Part("the first {c} letters of x", "x[:{c}]"),
            "repeated": Part("x written {c} times", "x * {c}"),
        },
        {
            "joined": Reduction("the concatenation of", '""', "result += {value}"),
            "list": _LIST,
            "last": _LAST,
        },
    ),
}
_SENTENCE = re.compile(r"(\w+)\(xs, k=(\d+)\) must return (.+) over each x in xs (.+?)\. xs holds")


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its parts, constants and the name of its function."""

    family: str
    condition: str
    step: str
    reduction: str
    name: str
    default: int
    """Default of ``k``."""
    constant: int
    """The constant of the step, if it has one."""

    @property
    def composition(self) -> str:
        """The parts, without names and constants. Splits have no composition in common."""
        return f"{self.family} {self.condition} {self.step} {self.reduction}"

    @property
    def meaning(self) -> str:
        """What the function returns, in words."""
        parts = FAMILIES[self.family]
        step = parts.steps[self.step].phrase.format(c=self.constant)
        reduction = parts.reductions[self.reduction].phrase
        return f"{reduction} {step} over each x in xs {parts.conditions[self.condition].phrase}"

    @property
    def sentence(self) -> str:
        """What the function must do. ``parse`` reads it."""
        items = FAMILIES[self.family].items
        return f"{self.name}(xs, k={self.default}) must return {self.meaning}. xs holds {items}."

    def files(self, num_files: int) -> dict[str, str]:
        """The modules by path.

        With one file, everything is in ``main.py``. The second is ``rules.py`` with the condition,
        the third ``steps.py`` with the step, and the fourth ``table.py``, which calls the function.
        """
        parts = FAMILIES[self.family]
        condition = parts.conditions[self.condition]
        step = parts.steps[self.step]
        test, value = condition.code, step.code.format(c=self.constant)
        made: dict[str, str] = {}
        imports = ""
        if num_files >= 2:
            made["rules.py"] = _function("keep(x, k)", f"Whether x is {condition.phrase}.", test)
            imports += "from rules import keep\n"
            test = "keep(x, k)"
        if num_files >= 3:
            words = f"Return {step.phrase.format(c=self.constant)}."
            made["steps.py"] = _function("step(x, k)", words, value)
            imports += "from steps import step\n"
            value = "step(x, k)"
        if num_files >= 4:
            table = _function(
                f"table(rows, k={self.default})",
                f"Return the {self.name} of each row.",
                f"[{self.name}(xs, k) for xs in rows]",
            )
            made["table.py"] = f"from main import {self.name}\n\n\n{table}"
        return {MAIN: (imports and f"{imports}\n\n") + self._main(test, value), **made}

    def _main(self, test: str, value: str) -> str:
        reduction = FAMILIES[self.family].reductions[self.reduction]
        return (
            f"def {self.name}(xs, k={self.default}):\n"
            f'    """Return {self.meaning}."""\n'
            f"    result = {reduction.start}\n"
            f"    for x in xs:\n"
            f"        if {test}:\n"
            f"            {reduction.update.format(value=value)}\n"
            f"    return result\n"
        )


def _function(head: str, words: str, value: str) -> str:
    return f'def {head}:\n    """{words}"""\n    return {value}\n'


def parse(text: str) -> Program:
    """The program whose sentence the text contains.

    Raises:
        ValueError: the text contains no such sentence.
    """
    found = _SENTENCE.search(text)
    if found is None:
        raise ValueError(f"{text!r} describes no program")
    name, default, values, chosen = found.groups()
    for family, parts in FAMILIES.items():
        for condition, part in parts.conditions.items():
            if part.phrase != chosen or f"xs holds {parts.items}." not in text:
                continue
            for reduction, kind in parts.reductions.items():
                if values.startswith(kind.phrase + " "):
                    step, constant = _step(parts, values.removeprefix(kind.phrase + " "))
                    return Program(family, condition, step, reduction, name, int(default), constant)
    raise ValueError(f"{text!r} describes no program")


def _step(parts: Family, words: str) -> tuple[str, int]:
    for name, part in parts.steps.items():
        pattern = re.escape(part.phrase).replace(r"\{c\}", r"(\d+)")
        if (found := re.fullmatch(pattern, words)) is not None:
            return name, int(found[1]) if found.groups() else 0
    raise ValueError(f"{words!r} is no step")

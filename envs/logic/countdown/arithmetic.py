"""Arithmetic over given numbers: parse expressions, search for them, and generate tasks."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from envs.datasets.generated import DrawnTasks

MAX_LENGTH = 200
"""Maximum characters of an expression."""
MIN_TARGET, MAX_TARGET = 10, 100

_ALPHABET = re.compile(r"[0-9+\-*/() ]+", re.ASCII)
_SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True, slots=True)
class CountdownTask:
    """Numbers and a target."""

    numbers: tuple[int, ...]
    target: int


class BadExpression(ValueError):
    """Raised for a text that is not an expression over the given numbers."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of an expression, and the numbers in it, in order.

    An expression is made of natural numbers, ``+ - * /`` between two values, and parentheses.

    Raises:
        BadExpression: the text is not such an expression, is too long, or divides by zero.
    """
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"more than {MAX_LENGTH} characters")
    if not _ALPHABET.fullmatch(text):
        raise BadExpression("only numbers, + - * / and parentheses may be used")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise BadExpression("that is no expression") from error
    numbers: list[int] = []
    return _value(tree.body, numbers), numbers


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _SYMBOLS:
        raise BadExpression("only numbers, + - * / and parentheses may be used")
    left, right = _value(node.left, numbers), _value(node.right, numbers)
    symbol = _SYMBOLS[type(node.op)]
    if symbol == "/" and right == 0:
        raise BadExpression("it divides by zero")
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
    }[symbol]()


def made_of(numbers: Sequence[int], expression: str, use_all: bool) -> Fraction:
    """The value of an expression over these numbers.

    Args:
        numbers: the given numbers. An expression can use each element of the list once.
        expression: the text.
        use_all: whether every number must be used.

    Raises:
        BadExpression: the text is not an expression, uses a number that is not given or uses one
            too often, or omits a number although ``use_all`` is set.
    """
    value, used = evaluate(expression)
    spare = Counter(numbers)
    spare.subtract(used)
    for number in used:
        if spare[number] < 0:
            raise BadExpression(f"{number} is not there so often")
    if use_all and spare.total():
        raise BadExpression(f"{next(spare.elements())} is not used")
    return value


def find(numbers: Sequence[int], target: int, use_all: bool) -> str | None:
    """An expression with the value ``target``, or None if there is none.

    All intermediate values of the expression are integers.
    """
    seen: set[tuple[int, ...]] = set()

    def search(terms: list[tuple[int, str]]) -> str | None:
        for value, text in terms:
            if value == target and (len(terms) == 1 or not use_all):
                return text
        state = tuple(sorted(value for value, _ in terms))
        if state in seen:
            return None
        seen.add(state)
        for one, other in combinations(range(len(terms)), 2):
            rest = [term for place, term in enumerate(terms) if place not in (one, other)]
            for joined in _joined(terms[one], terms[other]):
                found = search([*rest, joined])
                if found is not None:
                    return found
        return None

    found = search([(number, str(number)) for number in numbers])
    # No parentheses around the whole.
    return found[1:-1] if found is not None and found.startswith("(") else found


def _joined(one: tuple[int, str], other: tuple[int, str]) -> list[tuple[int, str]]:
    """The integer results of all operations on two terms, each with its expression."""
    (a, left), (b, right) = sorted((one, other), reverse=True)
    made = [
        (a + b, f"({left} + {right})"),
        (a * b, f"({left} * {right})"),
        (a - b, f"({left} - {right})"),
    ]
    if b and a % b == 0:
        made.append((a // b, f"({left} / {right})"))
    return made


def draw(rng: random.Random, count: int, largest: int) -> CountdownTask:
    """A random task that can be solved with all its numbers.

    Args:
        rng: random generator.
        count: how many numbers the task has.
        largest: the largest possible number; the smallest is 1.
    """
    while True:
        numbers = [1 + int(rng.random() * largest) for _ in range(count)]
        terms = [(number, "") for number in numbers]
        while len(terms) > 1:
            one = terms.pop(int(rng.random() * len(terms)))
            other = terms.pop(int(rng.random() * len(terms)))
            made = _joined(one, other)
            terms.append(made[int(rng.random() * len(made))])
        target = terms[0][0]
        if MIN_TARGET <= target <= MAX_TARGET and target not in numbers:
            return CountdownTask(tuple(numbers), target)


class CountdownTasks(DrawnTasks[CountdownTask]):
    """The tasks of one split.

    No two splits share a task, even with the numbers in another order.
    """

    def __init__(self, split: str, seed: int, count: int, largest: int) -> None:
        super().__init__(
            f"countdown {count} {largest}",
            split,
            seed,
            lambda rng: draw(rng, count, largest),
            lambda task: f"{sorted(task.numbers)} {task.target}",
        )

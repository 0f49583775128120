r"""Generated arithmetic and algebra, with disjoint splits.

A problem's canonical form is the sorted terms of a sum, the coefficients of an equation, or the
expansion of a product. A hash of the canonical form assigns the problem to one split. Therefore no
problem of the test split is in the training data, not even in another order, for any seed. Task
``i`` is drawn from (split, i, seed) alone.

===== =================================== =====================================
level arithmetic                          algebra
===== =================================== =====================================
1     ``7 + 5 - 4 + 8``                   ``3x + 4 = 19``
2     ``12 * 7 - (15 - 38) * 4``          ``5x - 7 = 2x + 9``, with a fraction
3     ``1/2 - 3/4 + 5/6``, with fractions ``(2x + 3)(x - 5)``, to be expanded
===== =================================== =====================================
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from fractions import Fraction

from envs.math.task import MathTask

NUM_TASKS = {"train": 1_000_000, "validation": 512, "test": 1024}
TOPICS = ("arithmetic", "algebra")
COMPUTE, SOLVE, EXPAND = "Compute ", "Solve for x: ", "Expand "
"""Beginnings of the three kinds of questions. Each question ends with a period."""

# At least one of ten problems belongs to a given split.
_MOST_ATTEMPTS = 1000
Drawn = tuple[str, str, str]
"""A generated problem: question, answer and canonical form."""


class GeneratedTasks:
    """The problems of one split.

    Args:
        split: "train", "validation" or "test".
        seed: selects the problems. Other seeds give other problems of the same split.
        topic: one of ``TOPICS``, or "mixed", which alternates.
        level: 1 to 3.
    """

    def __init__(self, split: str, seed: int, topic: str, level: int) -> None:
        self._split, self._seed, self._level = split, seed, level
        self._topics = TOPICS if topic == "mixed" else (topic,)

    def __len__(self) -> int:
        return NUM_TASKS[self._split]

    def __getitem__(self, index: int) -> MathTask:
        """Task ``index``.

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of split {self._split!r}: 0 to {len(self) - 1}")
        topic = self._topics[index % len(self._topics)]
        rng = random.Random(f"{self._seed}/{self._split}/{topic}/{self._level}/{index}")
        for _ in range(_MOST_ATTEMPTS):
            question, answer, canonical = _DRAW[topic, self._level](rng)
            if split_of_problem(canonical) == self._split:
                return MathTask(question, answer)
        raise AssertionError(f"no problem of split {self._split!r} for index {index}")


def split_of_problem(canonical: str) -> str:
    """The split of a problem. A fixed hash assigns 10% to test and 10% to validation."""
    bucket = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=4).digest()) % 10
    return {0: "test", 1: "validation"}.get(bucket, "train")


def latex(value: Fraction) -> str:
    """A number as LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def polynomial(a: int, b: int, c: int) -> str:
    """``ax^2 + bx + c`` in usual notation."""
    text = ""
    for coefficient, power in ((a, "x^2"), (b, "x"), (c, "")):
        if coefficient == 0:
            continue
        size = str(abs(coefficient)) if abs(coefficient) != 1 or not power else ""
        sign = ("-" if coefficient < 0 else "") if not text else f" {'-+'[coefficient > 0]} "
        text += f"{sign}{size}{power}"
    return text or "0"


def _signed_sum(rng: random.Random) -> Drawn:
    """A sum of 3 to 5 digits whose partial sums are all between 0 and 18."""
    terms = [rng.randint(1, 9)]
    total = terms[0]
    for _ in range(rng.randint(2, 4)):
        # Adds below 9 and subtracts above it, so that few different sums occur.
        term = rng.randint(1, 9) * (1 if total < 9 else -1 if total > 9 else rng.choice((1, -1)))
        terms.append(term)
        total += term
    text = f"{terms[0]}" + "".join(f" {'-+'[term > 0]} {abs(term)}" for term in terms[1:])
    return f"{COMPUTE}{text}.", str(total), f"sum {sorted(terms)}"


def _products(rng: random.Random) -> Drawn:
    """A product plus or minus another product with a sum in parentheses."""
    a, b, c, d = (rng.randint(2, 40) for _ in range(4))
    e, sign, inner = rng.randint(2, 12), rng.choice("+-"), rng.choice("+-")
    total = a * b + (1 if sign == "+" else -1) * (c + (d if inner == "+" else -d)) * e
    pair = sorted((c, d)) if inner == "+" else [c, d]
    text = f"{a} * {b} {sign} ({c} {inner} {d}) * {e}"
    canonical = f"products {sorted((a, b))} {sign} {pair} {inner} {e}"
    return f"{COMPUTE}{text}.", str(total), canonical


def _fractions(rng: random.Random) -> Drawn:
    """A signed sum of three fractions."""
    terms = [Fraction(rng.randint(1, 9), rng.randint(2, 9)) for _ in range(3)]
    signs = [1, rng.choice((1, -1)), rng.choice((1, -1))]
    signed = [sign * term for sign, term in zip(signs, terms, strict=True)]
    parts = [f"{'-+'[sign > 0]} {_ratio(term)}" for sign, term in zip(signs, terms, strict=True)]
    text = " ".join(parts).removeprefix("+ ")
    return f"{COMPUTE}{text}.", latex(sum(signed, Fraction())), f"fractions {sorted(signed)}"


def _ratio(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value)


def _linear(rng: random.Random) -> Drawn:
    """An equation ``ax + b = c`` whose root is a digit."""
    a, x, b = rng.randint(2, 9), rng.randint(1, 9), rng.randint(1, 9)
    b *= rng.choice((1, -1)) if a * x > b else 1
    return f"{SOLVE}{polynomial(0, a, b)} = {a * x + b}.", str(x), f"linear {a} {b} {x}"


def _linear_both(rng: random.Random) -> Drawn:
    """An equation ``ax + b = cx + d`` whose root is rational."""
    a, c = rng.sample(range(1, 13), 2)
    b, d = (rng.choice((1, -1)) * rng.randint(1, 30) for _ in range(2))
    text = f"{polynomial(0, a, b)} = {polynomial(0, c, d)}"
    return f"{SOLVE}{text}.", latex(Fraction(d - b, a - c)), f"both {sorted([(a, b), (c, d)])}"


def _expansion(rng: random.Random) -> Drawn:
    """The product ``(ax + b)(cx + d)``, to be expanded."""
    (a, b), (c, d) = (
        (rng.randint(1, 9), rng.choice((1, -1)) * rng.randint(1, 12)) for _ in range(2)
    )
    text = f"({polynomial(0, a, b)})({polynomial(0, c, d)})"
    answer = polynomial(a * c, a * d + b * c, b * d)
    # Two products may have the same expansion.
    return f"{EXPAND}{text}.", answer, f"expand {answer}"


_DRAW: Mapping[tuple[str, int], Callable[[random.Random], Drawn]] = {
    ("arithmetic", 1): _signed_sum,
    ("arithmetic", 2): _products,
    ("arithmetic", 3): _fractions,
    ("algebra", 1): _linear,
    ("algebra", 2): _linear_both,
    ("algebra", 3): _expansion,
}
LEVELS = (1, 2, 3)

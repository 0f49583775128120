r"""``reflective-math-v0``: sums of ``math-v0``, whose imperfect author sometimes thinks again.

An episode::

    Compute 7 + 5 - 4 + 8.
    7 + 5 = 12
    12 - 4 = 8
    \boxed{8}
    Wait, let me recheck.
    7 + 5 = 12
    12 - 4 = 8
    8 + 8 = 16
    \boxed{16}

This warm start is a small model's only source of reflection. A corruption makes the answer of a
correct chain wrong, as those of GSM8K in "Rethinking Reflection in Pre-Training" (arXiv
2504.04022): a wrong result, a superfluous step or a missing step, at the start, in the middle or at
the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from envs.math.env import MathEnv
from envs.math.scripted_policies import CarelessPolicy, expression
from tools.builtin.calculator import evaluate

TRIGGER = "\nWait,"
"""After a chain that ends wrong: the model goes on from here."""
AGAIN = " let me recheck."
"""What the author may say of it in words."""
NOTICES = 0.5
"""How often the author notices that its answer is wrong."""
SAYS_SO = 0.5
"""How often it then says so."""
KINDS = ("arithmetic", "extraneous", "omission")
PLACES = ("start", "middle", "end")
Term = tuple[int, int]
"""A signed number to add, and by how much the sum is then off."""


def terms_of(question: str) -> tuple[int, list[int]]:
    """The first number of a sum, and the signed ones that follow."""
    first, *rest = (expression(question) or "").split(" ")
    signed = zip(rest[::2], rest[1::2], strict=True)
    return int(first), [int(sign + number) for sign, number in signed]


def chain(first: int, terms: Sequence[Term]) -> str:
    """A sum worked out step by step, slips included, and what it comes to in a box."""
    total, lines = first, []
    for term, slip in terms:
        after = total + term + slip
        lines.append(f"{total} {'-+'[term > 0]} {abs(term)} = {after}")
        total = after
    return "\n".join([*lines, rf"\boxed{{{total}}}"])


def corrupted(question: str, kind: str, place: str, rng: random.Random) -> str:
    """The right chain of a question with one error, which its later steps carry to the end."""
    first, terms = terms_of(question)
    at = {"start": 0, "middle": len(terms) // 2, "end": len(terms) - 1}[place]
    right = [(term, 0) for term in terms]
    if kind == "omission":
        candidates = [[*right[:at], *right[at + 1 :]]]
    else:
        candidates = []
        for change in (*range(-9, 0), *range(1, 10)):
            if kind == "extraneous":
                where = at + (place == "end")
                candidates.append([*right[:where], (change, 0), *right[where:]])
            elif abs(change) <= 2:
                candidates.append([*right[:at], (terms[at], change), *right[at + 1 :]])
    natural = [terms for terms in candidates if _is_natural(first, terms)]
    return chain(first, rng.choice(natural or candidates))


def _is_natural(first: int, terms: Sequence[Term]) -> bool:
    """Whether all sums are as those of right chains, from 0 to 18."""
    total = first
    for term, slip in terms:
        total += term + slip
        if not 0 <= total <= 18:
            return False
    return True


class ReflectiveMathEnv(MathEnv):
    """Sums with an author who thinks again; see the module's docstring."""

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """The careless author of ``math-v0``, who notices half of its wrong answers."""
        careless = CarelessPolicy(self._layout, self._author_tool, rng)

        def say(question: str) -> str:
            said = careless(question)
            right = rf"\boxed{{{evaluate(expression(question) or '')}}}"
            if said.endswith(right) or rng.random() >= NOTICES:
                return said
            first, terms = terms_of(question)
            words = AGAIN if rng.random() < SAYS_SO else ""
            return f"{said}{TRIGGER}{words}\n{chain(first, [(term, 0) for term in terms])}"

        return say

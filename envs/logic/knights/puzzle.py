"""Random puzzles with exactly one solution, which is checked by trying every assignment."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

from envs.datasets.generated import DrawnTasks
from envs.logic.knights.statements import (
    ROLES,
    Statement,
    always,
    from_text,
    solutions,
    to_text,
    truth,
)

# Names of the first speaker, the second speaker, and so on. As with A, B and C in books, a name
# identifies the position, so that a small model need not search the text. The names are short and
# not English words: few tokens, and no other meaning.
NAMES = (
    ("Abel", "Ada", "Anna"),
    ("Berta", "Bela", "Boris"),
    ("Carl", "Clara", "Cyril"),
    ("Dana", "Dirk", "Dora"),
    ("Edgar", "Emil", "Emma"),
    ("Felix", "Flora", "Frida"),
    ("Georg", "Greta", "Gustav"),
    ("Hanna", "Helga", "Hugo"),
)
MIN_PEOPLE, MAX_PEOPLE = 2, 8
MAX_DEPTH = 4
_SPEECH = re.compile(r"(\w+) says: (.*)\.")
_LEAVES = ("knight", "knave")
_COMPOUND = ("and", "or", "if", "iff")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """People, their statements, and the solution."""

    names: tuple[str, ...]
    statements: tuple[Statement, ...]
    """The statements. Statement ``i`` is made by person ``i``."""
    solution: int
    """The only consistent assignment: bit ``i`` is set if person ``i`` is a knight."""

    @property
    def roles(self) -> dict[str, str]:
        """The solution: "knight" or "knave", by name."""
        return {name: ROLES[self.solution >> i & 1] for i, name in enumerate(self.names)}

    def text(self) -> str:
        """The statements, one line per person."""
        names = self.names
        said = zip(names, self.statements, strict=True)
        return "\n".join(f"{name} says: {to_text(statement, names)}." for name, statement in said)


def read(text: str) -> Puzzle:
    """The puzzle, with its solution, in a text that :meth:`Puzzle.text` returned.

    Raises:
        ValueError: the text is malformed, or the puzzle does not have exactly one solution.
    """
    speeches = _SPEECH.findall(text)
    names = tuple(name for name, _ in speeches)
    statements = tuple(from_text(said, names) for _, said in speeches)
    found = solutions(statements) if names else []
    if len(found) != 1:
        raise ValueError(f"{text!r} is no puzzle with one solution")
    return Puzzle(names, statements, found[0])


def draw(rng: random.Random, people: int, depth: int) -> Puzzle:
    """A random puzzle with exactly one solution. No statement is always true or always false.

    Args:
        rng: random generator.
        people: number of people, from 2 to 8.
        depth: maximum nesting of statements. At depth 1, a statement is about one person.
    """
    while True:
        statements = tuple([_draw_statement(rng, people, depth) for _ in range(people)])
        found = solutions(statements)
        if len(found) == 1:
            names = tuple([rng.choice(initial) for initial in NAMES[:people]])
            return Puzzle(names, statements, found[0])


def key(puzzle: Puzzle) -> str:
    """A key of the puzzle's meaning: puzzles that differ only in wording or order have equal keys.

    The key does not depend on names. For each speaker, the key counts the assignments under which
    the statement is true, by the speaker's role and the number of other knights.
    """
    people = len(puzzle.names)
    said = [
        tuple([(true & group).bit_count() for group in _groups(people)[speaker]])
        for speaker, true in enumerate(truth(statement, people) for statement in puzzle.statements)
    ]
    return str(sorted(said))


class KnightsTasks(DrawnTasks[Puzzle]):
    """The puzzles of one split. No :func:`key` occurs in two splits."""

    def __init__(self, split: str, seed: int, people: int, depth: int) -> None:
        family = f"knights-knaves {people} {depth}"
        super().__init__(family, split, seed, lambda rng: draw(rng, people, depth), key)


def _draw_statement(rng: random.Random, people: int, depth: int) -> Statement:
    while True:
        statement = _draw_part(rng, people, depth)
        if statement[0] in ROLES or 0 < truth(statement, people) < always(people):
            return statement


def _draw_part(rng: random.Random, people: int, depth: int) -> Statement:
    dice = int(rng.random() * 6) if depth > 1 else 0
    if dice == 0:
        return (_LEAVES[rng.random() < 0.5], int(rng.random() * people))
    if dice == 1:
        # The negation of a statement about one person is another such statement.
        if depth == 2:
            return _draw_part(rng, people, 1)
        return ("not", _draw_compound(rng, people, depth - 1))
    return _draw_compound(rng, people, depth)


def _draw_compound(rng: random.Random, people: int, depth: int) -> Statement:
    kind = _COMPOUND[int(rng.random() * 4)]
    left, right = _draw_part(rng, people, depth - 1), _draw_part(rng, people, depth - 1)
    # Parts about one person alone may be trivial ("if Ida is a knave then Ida is a knave").
    while left == right or (left[0] in ROLES and right[0] in ROLES and left[1] == right[1]):
        right = _draw_part(rng, people, depth - 1)
    return (kind, left, right)


@cache
def _groups(people: int) -> tuple[tuple[int, ...], ...]:
    """Groups of assignments of roles to people, for each speaker.

    The assignments of a group agree on the speaker's role and on the number of other knights. A
    group is an integer whose bit ``a`` is set if the group contains assignment ``a``.
    """
    groups: list[tuple[int, ...]] = []
    for speaker in range(people):
        sets = [0] * (2 * people)
        for assignment in range(1 << people):
            knight = assignment >> speaker & 1
            sets[knight * people + assignment.bit_count() - knight] |= 1 << assignment
        groups.append(tuple(sets))
    return tuple(groups)

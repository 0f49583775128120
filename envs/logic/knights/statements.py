"""Statements of knights and knaves: their structure, their truth, and their English.

A statement is a tuple. A claim about person ``p`` is ``("knight", p)`` or ``("knave", p)``. The
other statements contain statements ``s`` and ``t``: ``("and", s, t)``, ``("or", s, t)``,
``("if", s, t)``, ``("iff", s, t)`` and ``("not", s)``.

An *assignment* of roles is an integer whose bit ``p`` is set if person ``p`` is a knight. The truth
of a statement is computed for all ``2 ** people`` assignments at once, as an integer whose bit
``a`` is set if the statement is true under assignment ``a``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

Statement = tuple[Any, ...]

ROLES = ("knave", "knight")
"""Roles, indexed by whether their statements are true."""
_JOINS = {"and": " and ", "or": " or ", "iff": " if and only if "}
_WORDS = re.compile(r"if and only if|it is not the case that|is a|[()]|\w+")


@cache
def knights(people: int) -> tuple[int, ...]:
    """For each person, the set of assignments in which the person is a knight, as an integer."""
    count = 1 << people
    return tuple(sum(1 << a for a in range(count) if a >> p & 1) for p in range(people))


@cache
def always(people: int) -> int:
    """The set of all assignments, as an integer."""
    return (1 << (1 << people)) - 1


def truth(statement: Statement, people: int) -> int:
    """The set of assignments under which the statement is true, as an integer."""
    kind = statement[0]
    if kind == "knight":
        return knights(people)[statement[1]]
    if kind == "knave":
        return always(people) ^ knights(people)[statement[1]]
    if kind == "not":
        return always(people) ^ truth(statement[1], people)
    left, right = truth(statement[1], people), truth(statement[2], people)
    if kind == "and":
        return left & right
    if kind == "or":
        return left | right
    if kind == "if":
        return (always(people) ^ left) | right
    return always(people) ^ left ^ right


def leaves(statement: Statement) -> list[Statement]:
    """The claims in a statement, from left to right. Each claim is about one person."""
    if statement[0] in ROLES:
        return [statement]
    return [leaf for part in statement[1:] for leaf in leaves(part)]


def joins(statement: Statement) -> list[str]:
    """The words that join consecutive :func:`leaves`: "and", "or", "if" or "iff"."""
    kind, *parts = statement
    if kind in ROLES:
        return []
    if kind == "not":
        return joins(parts[0])
    return [*joins(parts[0]), kind, *joins(parts[1])]


def solutions(statements: Sequence[Statement]) -> list[int]:
    """All assignments in which knights tell the truth and knaves lie.

    Statement ``i`` is made by person ``i``.
    """
    people = len(statements)
    left = always(people)
    for knight, statement in zip(knights(people), statements, strict=True):
        left &= always(people) ^ knight ^ truth(statement, people)
    return [a for a in range(1 << people) if left >> a & 1]


def to_text(statement: Statement, names: Sequence[str]) -> str:
    """The statement in English, with parentheses around every compound part."""
    kind = statement[0]
    if kind in ROLES:
        return f"{names[statement[1]]} is a {kind}"
    parts = [
        to_text(part, names) if part[0] in ROLES else f"({to_text(part, names)})"
        for part in statement[1:]
    ]
    if kind == "not":
        return f"it is not the case that {parts[0]}"
    if kind == "if":
        return f"if {parts[0]} then {parts[1]}"
    return _JOINS[kind].join(parts)


def from_text(text: str, names: Sequence[str]) -> Statement:
    """Parse a statement that :func:`to_text` has written.

    Raises:
        ValueError: the text is malformed.
    """
    words = iter([*_WORDS.findall(text), ""])
    try:
        statement = _read(words, names, end="")
    except (StopIteration, LookupError, ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is no statement about {', '.join(names)}") from error
    if to_text(statement, names) != text:
        raise ValueError(f"{text!r} is no statement about {', '.join(names)}")
    return statement


def _read(words: Iterator[str], names: Sequence[str], end: str) -> Statement:
    """Parse a statement up to and including the word ``end``."""
    word = next(words)
    if word == "it is not the case that":
        inner = _operand(next(words), words, names)
        next(words)
        return ("not", inner)
    if word == "if":
        first = _operand(next(words), words, names)
        next(words)
        second = _operand(next(words), words, names)
        next(words)
        return ("if", first, second)
    first = _operand(word, words, names)
    join = next(words)
    if join == end:
        return first
    second = _operand(next(words), words, names)
    next(words)
    return ({"and": "and", "or": "or", "if and only if": "iff"}[join], first, second)


def _operand(word: str, words: Iterator[str], names: Sequence[str]) -> Statement:
    if word == "(":
        return _read(words, names, end=")")
    person = {name: place for place, name in enumerate(names)}[word]
    next(words)
    return (ROLES[ROLES.index(next(words))], person)

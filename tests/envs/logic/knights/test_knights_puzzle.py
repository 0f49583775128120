"""Statements and puzzles: truth, English and back, exactly one solution, splits held apart."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from envs.datasets.generated import NUM_TASKS
from envs.logic.knights.puzzle import MAX_PEOPLE, NAMES, KnightsTasks, Puzzle, draw, key, read
from envs.logic.knights.statements import (
    from_text,
    joins,
    knights,
    leaves,
    solutions,
    to_text,
    truth,
)

PEOPLE = ("Zoey", "Oliver", "Liam")
OTHERS = (("knave", 2), ("knight", 0))


def holds(statement, roles):
    """Whether a statement is true, by the book: one assignment, one connective at a time."""
    kind, *parts = statement
    if kind in ("knight", "knave"):
        return roles[parts[0]] == (kind == "knight")
    values = [holds(part, roles) for part in parts]
    return {
        "not": lambda: not values[0],
        "and": lambda: values[0] and values[1],
        "or": lambda: values[0] or values[1],
        "if": lambda: values[1] if values[0] else True,
        "iff": lambda: values[0] == values[1],
    }[kind]()


def fitting(statements):
    """Every assignment in which each speaks in character, found by trying all of them."""
    return [
        roles
        for roles in product([False, True], repeat=len(statements))
        if all(
            holds(statement, roles) == knight
            for knight, statement in zip(roles, statements, strict=True)
        )
    ]


def as_roles(assignment, people):
    return tuple(bool(assignment >> i & 1) for i in range(people))


def test_a_puzzle_by_hand():
    # Were Zoey a knight, both would be; but then Oliver's word that she is a knave would be true.
    said = [("and", ("knight", 0), ("knight", 1)), ("knave", 0)]
    assert solutions(said) == [0b10]
    # The paradox has no solution, "I am a knight" two.
    assert solutions([("knave", 0)]) == []
    assert solutions([("knight", 0)]) == [0, 1]


@pytest.mark.parametrize("people", range(2, 9))
@pytest.mark.parametrize("depth", [2, 4])
def test_truth_of_all_assignments_is_the_truth_of_each(people, depth):
    rng = random.Random(people)
    for _ in range(5):
        for statement in draw(rng, people, depth).statements:
            mask = truth(statement, people)
            for assignment in range(1 << people):
                assert mask >> assignment & 1 == holds(statement, as_roles(assignment, people))


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (("knave", 1), "Oliver is a knave"),
        (("or", ("knave", 1), ("knight", 2)), "Oliver is a knave or Liam is a knight"),
        (("if", ("knave", 1), ("knight", 0)), "if Oliver is a knave then Zoey is a knight"),
        (
            ("not", ("iff", ("knight", 0), ("and", ("knight", 1), ("knave", 2)))),
            "it is not the case that (Zoey is a knight if and only if "
            "(Oliver is a knight and Liam is a knave))",
        ),
        (
            (
                "if",
                ("if", ("knight", 0), ("knave", 1)),
                ("not", ("or", ("knave", 0), ("knave", 2))),
            ),
            "if (if Zoey is a knight then Oliver is a knave) then "
            "(it is not the case that (Zoey is a knave or Liam is a knave))",
        ),
    ],
)
def test_english_and_back(statement, text):
    assert to_text(statement, PEOPLE) == text
    assert from_text(text, PEOPLE) == statement


def test_leaves_and_what_joins_them():
    statement = ("not", ("if", ("iff", ("knight", 0), ("knave", 1)), ("and", *OTHERS)))
    assert leaves(statement) == [("knight", 0), ("knave", 1), *OTHERS]
    assert joins(statement) == ["iff", "if", "and"]
    assert (leaves(OTHERS[0]), joins(OTHERS[0])) == ([OTHERS[0]], [])


def test_names_are_unique():
    names = [name for known in NAMES for name in known]
    assert len(set(names)) == len(names) and len(NAMES) == MAX_PEOPLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Oliver",
        "Oliver is a",
        "Oliver is a saint",
        "Emma is a knight",
        "Oliver is a knave and",
        "(Oliver is a knave)",
        "Oliver is a knave and Liam is a knave and Zoey is a knave",
        "if Oliver is a knave or Liam is a knave",
        "it is not the case that Oliver is a knave and Liam is a knight",
        "(" * 2000,
    ],
)
def test_no_other_text_is_a_statement(text):
    with pytest.raises(ValueError, match="is no statement about Zoey, Oliver, Liam"):
        from_text(text, PEOPLE)


@pytest.mark.parametrize(("people", "depth"), [(2, 2), (3, 2), (3, 3), (5, 4), (8, 2)])
def test_drawn_puzzles_have_one_solution_and_read_back(people, depth):
    tasks = KnightsTasks("train", 0, people, depth)
    for index in range(60):
        puzzle = tasks[index]
        assert fitting(puzzle.statements) == [as_roles(puzzle.solution, people)]
        assert read(puzzle.text()) == puzzle
        assert len(puzzle.names) == people
        assert all(name in known for name, known in zip(puzzle.names, NAMES, strict=False))
        assert [puzzle.roles[name] == "knight" for name in puzzle.names] == list(
            as_roles(puzzle.solution, people)
        )


def test_ten_thousand_puzzles_have_one_solution():
    tasks = KnightsTasks("train", 1, 3, 2)
    for index in range(10_000):
        puzzle = tasks[index]
        assert fitting(puzzle.statements) == [as_roles(puzzle.solution, 3)]


def test_every_role_is_equally_likely_for_each_person():
    tasks = KnightsTasks("train", 0, 3, 2)
    solved = [as_roles(tasks[i].solution, 3) for i in range(1500)]
    for person in range(3):
        # Five standard errors.
        assert sum(roles[person] for roles in solved) == pytest.approx(750, abs=150)
    assert len(set(solved)) == 8


def test_no_statement_is_always_true_or_always_false():
    for index in range(300):
        for statement in KnightsTasks("train", 0, 2, 3)[index].statements:
            assert 0 < truth(statement, 2) < 0b1111


def reordered(puzzle: Puzzle, order: tuple[int, ...]) -> Puzzle:
    """The same puzzle with its people in another order: person ``order[i]`` comes ``i``-th."""
    place = {person: i for i, person in enumerate(order)}

    def renumber(statement):
        if statement[0] in ("knight", "knave"):
            return (statement[0], place[statement[1]])
        return (statement[0], *map(renumber, statement[1:]))

    statements = tuple(renumber(puzzle.statements[person]) for person in order)
    (solution,) = solutions(statements)
    return Puzzle(tuple(puzzle.names[person] for person in order), statements, solution)


def test_who_says_it_and_in_which_words_does_not_change_the_key():
    rng = random.Random(0)
    for _ in range(20):
        puzzle = draw(rng, 4, 3)
        assert {key(reordered(puzzle, order)) for order in permutations(range(4))} == {key(puzzle)}
    original = Puzzle(PEOPLE, (("if", ("knight", 0), ("knave", 1)), ("knight", 0), ("knave", 1)), 0)
    same = Puzzle(PEOPLE, (("or", ("knave", 1), ("knave", 0)), ("knight", 0), ("knave", 1)), 0)
    other = Puzzle(PEOPLE, (("or", ("knave", 1), ("knight", 0)), ("knight", 0), ("knave", 1)), 0)
    assert key(original) == key(same) != key(other)


@pytest.mark.parametrize(("people", "depth"), [(2, 2), (3, 2), (4, 3)])
def test_no_puzzle_is_in_two_splits(people, depth):
    keys = {
        split: {
            key(KnightsTasks(split, seed, people, depth)[i]) for seed in (0, 1) for i in range(60)
        }
        for split in NUM_TASKS
    }
    assert all(len(found) > 3 for found in keys.values())
    assert sum(map(len, keys.values())) == len(set.union(*keys.values()))


def test_a_puzzle_is_the_same_on_every_machine():
    puzzle = KnightsTasks("test", 0, 3, 2)[0]
    assert puzzle.text() == GOLDEN


def test_reading_needs_a_puzzle_with_one_solution():
    for text in ("", "Hello.", "Zoey says: Zoey is a knight."):
        with pytest.raises(ValueError, match="is no puzzle with one solution"):
            read(text)


def test_bits_of_people():
    assert knights(2) == (0b1010, 0b1100)


GOLDEN = """Anna says: Anna is a knave if and only if Bela is a knight.
Bela says: Cyril is a knave.
Cyril says: if Anna is a knight then Cyril is a knave."""

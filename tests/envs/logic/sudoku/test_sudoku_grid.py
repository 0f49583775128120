"""Grids: rules, solutions counted, puzzles with exactly one, splits held apart."""

from __future__ import annotations

import random
from itertools import product

import pytest

from envs.datasets.generated import NUM_TASKS
from envs.logic.sudoku.grid import MAX_HOLES, SudokuTasks, dig, mistake, solve, units

FULL = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)


def by_hand(grid):
    """Every way to fill a grid of 4 by 4, by trying all digits in all empty cells."""
    empty = [cell for cell, digit in enumerate(grid) if digit == 0]
    ways = []
    for digits in product(range(1, 5), repeat=len(empty)):
        full = list(grid)
        for cell, digit in zip(empty, digits, strict=True):
            full[cell] = digit
        rows = [full[r * 4 : r * 4 + 4] for r in range(4)]
        columns = [full[c::4] for c in range(4)]
        boxes = [
            [full[r * 4 + c] for r in (top, top + 1) for c in (left, left + 1)]
            for top in (0, 2)
            for left in (0, 2)
        ]
        if all(sorted(unit) == [1, 2, 3, 4] for unit in rows + columns + boxes):
            ways.append(tuple(full))
    return ways


def test_units():
    named = dict(units(9))
    assert len(named) == 27 and all(len(set(cells)) == 9 for cells in named.values())
    assert named["row 2"] == tuple(range(9, 18))
    assert named["column 9"] == tuple(range(8, 81, 9))
    assert named["box 6"] == (33, 34, 35, 42, 43, 44, 51, 52, 53)


def test_mistakes():
    assert mistake(FULL, 4) is None
    assert mistake((2, *FULL[1:]), 4) == "row 1 lacks 1"
    assert mistake((*FULL[4:8], *FULL[:4], *FULL[8:]), 4) is None
    assert mistake((*FULL[:4], *FULL[8:12], *FULL[4:8], *FULL[12:]), 4) == "box 1 lacks 3"
    assert mistake(FULL[:4] * 4, 4) == "column 1 lacks 2"


def test_solutions_are_all_there_are():
    rng = random.Random(0)
    for _ in range(40):
        holes = set(rng.sample(range(16), 5))
        grid = [0 if cell in holes else digit for cell, digit in enumerate(FULL)]
        assert sorted(solve(grid, 4, limit=999)) == by_hand(grid)
    # Of 4 by 4 there are 288.
    assert len(set(solve([0] * 16, 4, limit=999))) == 288
    assert len(solve([0] * 16, 4, limit=5)) == 5
    assert solve([1, 1, *[0] * 14], 4, limit=1) == []


@pytest.mark.parametrize(("size", "holes"), [(4, 1), (4, 6), (4, 10), (9, 30), (9, MAX_HOLES[9])])
def test_puzzles_have_one_solution_and_so_many_holes(size, holes):
    tasks = SudokuTasks("train", 0, size, holes)
    for index in range(12):
        task = tasks[index]
        assert task.puzzle.count(0) == holes
        assert solve(task.puzzle, size, limit=2) == [task.solution]
        assert mistake(task.solution, size) is None
        assert all(p in (0, s) for p, s in zip(task.puzzle, task.solution, strict=True))
        if (size, holes) == (4, 6):
            assert by_hand(task.puzzle) == [task.solution]


def test_holes_are_at_random():
    rng = random.Random(0)
    dug = [dig(FULL, 4, 6, rng) for _ in range(400)]
    for cell in range(16):
        # 6 of 16 cells, were they all as easily emptied.
        assert sum(grid[cell] == 0 for grid in dug) == pytest.approx(150, abs=60)


@pytest.mark.parametrize("size", [4, 9])
def test_no_solution_is_in_two_splits(size):
    found = {
        split: {SudokuTasks(split, seed, size, 6)[i].solution for seed in (0, 1) for i in range(60)}
        for split in NUM_TASKS
    }
    assert all(len(grids) > 10 for grids in found.values())
    assert sum(map(len, found.values())) == len(set.union(*found.values()))


def test_a_task_is_a_function_of_split_index_and_seed():
    assert SudokuTasks("test", 3, 4, 6)[77] == SudokuTasks("test", 3, 4, 6)[77]
    tasks = {SudokuTasks(split, seed, 9, 6)[77] for split in ("train", "test") for seed in (0, 1)}
    assert len(tasks) == 4
    with pytest.raises(IndexError, match="task 1024 of split 'validation'"):
        SudokuTasks("validation", 0, 4, 6)[1024]

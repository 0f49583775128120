"""Grids: solve them, count their solutions, and generate puzzles with exactly one solution."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from envs.datasets.generated import NUM_TASKS, check_index, split_of, task_rng

Grid = tuple[int, ...]
"""The digits of a grid, row by row; 0 is an empty cell."""
BOX = {4: 2, 9: 3}
"""Side length of a box, by size of the grid."""
MAX_HOLES = {4: 10, 9: 48}
"""Maximum number of empty cells, by size of the grid. With more, few puzzles have one solution."""

_EXCHANGES = 40


@dataclass(frozen=True, slots=True)
class SudokuTask:
    """A grid with empty cells, and its only solution."""

    puzzle: Grid
    solution: Grid


@cache
def units(size: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Every row, column and box: its name and its cells."""
    box, one_to = BOX[size], range(size)
    named = [(f"row {r + 1}", tuple(r * size + c for c in one_to)) for r in one_to]
    named += [(f"column {c + 1}", tuple(r * size + c for r in one_to)) for c in one_to]
    for b in one_to:
        top, left = b // box * box, b % box * box
        cells = tuple((top + i // box) * size + left + i % box for i in one_to)
        named.append((f"box {b + 1}", cells))
    return tuple(named)


@cache
def _units_of(size: int) -> tuple[tuple[int, int, int], ...]:
    """For each cell, the indices in :func:`units` of its row, column and box."""
    found: list[list[int]] = [[] for _ in range(size * size)]
    for place, (_, cells) in enumerate(units(size)):
        for cell in cells:
            found[cell].append(place)
    return tuple((row, column, box) for row, column, box in found)


def mistake(grid: Sequence[int], size: int) -> str | None:
    """A message about the first row, column or box that lacks a digit, or None if none does."""
    for name, cells in units(size):
        missing = set(range(1, size + 1)).difference(grid[cell] for cell in cells)
        if missing:
            return f"{name} lacks {min(missing)}"
    return None


def solve(
    grid: Sequence[int], size: int, limit: int, rng: random.Random | None = None
) -> list[Grid]:
    """Up to ``limit`` solutions of a grid.

    The search fills the empty cell with the fewest possible digits first. It tries digits in order,
    or in random order if ``rng`` is passed.
    """
    where, cells, found = _units_of(size), list(grid), list[Grid]()
    free = [(1 << size) - 1] * len(units(size))
    empty = []
    for cell, digit in enumerate(cells):
        if digit == 0:
            empty.append(cell)
            continue
        for unit in where[cell]:
            # A repeated digit means that the grid has no solution.
            if not free[unit] >> (digit - 1) & 1:
                return []
            free[unit] ^= 1 << (digit - 1)

    def search() -> None:
        fewest, at, options = size + 1, -1, 0
        for place, cell in enumerate(empty):
            row, column, box = where[cell]
            left = free[row] & free[column] & free[box]
            count = left.bit_count()
            if count < fewest:
                fewest, at, options = count, place, left
                if count < 2:
                    break
        if at < 0:
            found.append(tuple(cells))
            return
        cell = empty[at]
        empty[at] = empty[-1]
        empty.pop()
        digits = [digit for digit in range(size) if options >> digit & 1]
        if rng is not None:
            rng.shuffle(digits)
        for digit in digits:
            cells[cell] = digit + 1
            for unit in where[cell]:
                free[unit] ^= 1 << digit
            search()
            for unit in where[cell]:
                free[unit] ^= 1 << digit
            if len(found) >= limit:
                break
        cells[cell] = 0
        empty.append(cell)
        empty[at], empty[-1] = empty[-1], empty[at]

    search()
    return found


def dig(solution: Grid, size: int, holes: int, rng: random.Random) -> Grid:
    """A puzzle with ``holes`` random empty cells, whose only solution is ``solution``."""
    while True:
        order = list(range(size * size))
        rng.shuffle(order)
        empty, spare = order[:holes], order[holes:]
        # While there are two solutions, fill a cell in which they differ and empty another cell.
        while True:
            chosen = set(empty)
            puzzle = tuple(0 if cell in chosen else d for cell, d in enumerate(solution))
            ways = solve(puzzle, size, limit=2)
            if len(ways) == 1:
                return puzzle
            differ = [cell for cell in empty if ways[0][cell] != ways[1][cell]]
            if not spare:
                break
            empty.remove(differ[int(rng.random() * len(differ))])
            empty.append(spare.pop())


class SudokuTasks:
    """The puzzles of one split. Puzzles of different splits have different solutions."""

    def __init__(self, split: str, seed: int, size: int, holes: int) -> None:
        self._split, self._seed, self._size, self._holes = split, seed, size, holes

    def __len__(self) -> int:
        return NUM_TASKS[self._split]

    def __getitem__(self, index: int) -> SudokuTask:
        check_index(index, self._split)
        size = self._size
        rng = task_rng(f"sudoku {size} {self._holes}", self._split, self._seed, index)
        full = self._draw(rng)
        return SudokuTask(dig(full, size, self._holes, rng), full)

    def _draw(self, rng: random.Random) -> Grid:
        """A random full grid that belongs to this split."""
        size = self._size
        while True:
            (full,) = solve([0] * (size * size), size, limit=1, rng=rng)
            # Exchanging digits makes another grid faster than filling one, but some grids of 4 by 4
            # have no such variant in this split.
            for _ in range(_EXCHANGES):
                if split_of(str(full)) == self._split:
                    return full
                digits = rng.sample(range(1, size + 1), size)
                full = tuple([digits[digit - 1] for digit in full])

"""Grids from rows: ``puzzle`` and ``solution``, as texts of digits or lists of rows.

An empty cell is ``0``, ``.`` or ``_``. The columns may also be called ``question`` and ``answer``,
or ``quizzes`` and ``solutions``. A puzzle without a solution column must have exactly one solution,
which is computed.
"""

from __future__ import annotations

from typing import Any

from envs.datasets import Row, kept_while_unchanged
from envs.datasets.splits import Dataset
from envs.logic.rows import find, load_puzzles, need
from envs.logic.sudoku.grid import Grid, SudokuTask, mistake, solve

_EMPTY = str.maketrans("._", "00")


@kept_while_unchanged
def load_grids(source: str, columns: str, size: int) -> Dataset[SudokuTask]:
    """The puzzles of a source of ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row is not a puzzle of this size.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """

    def read(row: Row) -> SudokuTask:
        puzzle = _grid(row, need(row, "puzzle", "question", "quizzes", "grid"), size)
        if 0 not in puzzle:
            raise ValueError(f"{row.where}: the puzzle has no empty cell")
        found = find(row, "solution", "answer", "solutions")
        if found is None:
            ways = solve(puzzle, size, limit=2)
            if len(ways) != 1:
                raise ValueError(f"{row.where}: the puzzle has {len(ways) or 'no'} solutions")
            return SudokuTask(puzzle, ways[0])
        solution = _grid(row, found, size)
        apart = any(given not in (0, cell) for given, cell in zip(puzzle, solution, strict=True))
        wrong = "it differs from the puzzle" if apart else mistake(solution, size)
        if wrong is not None:
            raise ValueError(f"{row.where}: the solution is none: {wrong}")
        return SudokuTask(puzzle, solution)

    return load_puzzles(source, columns, read, lambda task: str(task.solution))


def _grid(row: Row, value: Any, size: int) -> Grid:
    text = "".join(map(str, _flat(value))) if isinstance(value, list) else str(value)
    digits = "".join(text.split()).translate(_EMPTY)
    if len(digits) == size * size and all("0" <= digit <= str(size) for digit in digits):
        return tuple(map(int, digits))
    other = {16: 4, 81: 9}.get(len(digits), size)
    hint = f": give size={other}" if other != size else ""
    raise ValueError(
        f"{row.where}: expected {size * size} digits from 0 to {size}, got {len(digits)}{hint}"
    )


def _flat(value: list[Any]) -> list[Any]:
    return [cell for part in value for cell in (part if isinstance(part, list) else [part])]

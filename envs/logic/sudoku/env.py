"""``sudoku-v0``: fill a grid so that every row, column and box holds each digit once.

::

    1 _ 3 4
    3 4 _ 2
    _ 1 4 3
    4 3 2 _
    <think> ... </think> <answer> 1 2 3 4  3 4 1 2  2 1 4 3  4 3 2 1 </answer>
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from envs.base.pictures import Cell, Mark, Picture
from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, Reply, finish, go_on
from envs.logic.answers import only_answer
from envs.logic.sudoku.grid import (
    BOX,
    MAX_HOLES,
    Grid,
    SudokuTask,
    SudokuTasks,
    mistake,
    solve,
    units,
)
from envs.logic.sudoku.rows import load_grids
from envs.options import Card

_LINES = str.maketrans(dict.fromkeys("|+-[],;", " "))
"""Characters that answers draw or write between the digits of a grid."""
_DIGITS = re.compile(r"[1-9\s]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SudokuOptions(RowOptions):
    """Options of the grid."""

    size: int = 4
    """Number of digits, rows, columns and boxes, either 4 or 9."""
    holes: int = 6
    """Number of empty cells, from 1 to 10 for size 4 and from 1 to 48 for size 9."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in BOX:
            raise ValueError(f"size ({self.size}) must be 4 or 9")
        if not 1 <= self.holes <= MAX_HOLES[self.size]:
            raise ValueError(f"holes ({self.holes}) must be from 1 to {MAX_HOLES[self.size]}")


class SudokuEnv(TextEnv[SudokuTask, SudokuTask]):
    """Grids with one solution; the agent may correct a wrong grid while turns are left."""

    Options = SudokuOptions
    card = Card(agent="fills a grid of 4 by 4 or 9 by 9", turns="1, or more", reward="1 if solved")
    success_score = "solved"

    def __init__(self, options: SudokuOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _tasks(options), services)
        self.system_prompt = _instructions(options.size) if options.instructions else None

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[SudokuTask] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(SudokuOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_grids(chosen.tasks, chosen.columns, chosen.size)

    def begin(self, task: SudokuTask) -> str:
        """The grid, with ``_`` for empty cells."""
        self.state = task
        return _to_text(task.puzzle, self._size)

    def turn(self, action: Action) -> Reply:
        """Check the grid; reply with a message about the first mistake, or end the episode."""
        grid = self._read(action.content)
        wrong = grid if isinstance(grid, str) else self._wrong(grid)
        solved = float(wrong is None)
        scores = {"solved": solved, "filled": 0.0 if isinstance(grid, str) else self._right(grid)}
        if wrong is not None and self.turns_left > 1:
            return go_on(f"{wrong[0].upper()}{wrong[1:]}.", scores=scores)
        return finish({"solved": solved}, scores=scores)

    def difficulty(self, task_index: int) -> float:
        """A difficulty that grows with the number of empty cells."""
        options = cast(SudokuOptions, self.options)
        given = options.tasks == GENERATED
        holes = options.holes if given else self.tasks[task_index].puzzle.count(0)
        return min(1.0, holes / max(MAX_HOLES.values()))

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that solves the grid by search."""
        return self._solve

    @classmethod
    def pictures(cls, observation: str, actions: Sequence[str]) -> list[Picture | None]:
        """The grid, and the grid of each answer; cells that contradict each other are marked."""
        rows = [line.split() for line in observation.splitlines()]
        size = len(rows)
        if size not in BOX or any(len(row) != size for row in rows):
            return []
        puzzle = [cell for row in rows for cell in row]
        drawn: list[Picture | None] = [_picture(puzzle, puzzle)]
        for action in actions:
            cells = [*"".join((only_answer(Action(action).content) or "").split())]
            drawn.append(_picture(puzzle, cells) if len(cells) == size**2 else None)
        return drawn

    @property
    def _size(self) -> int:
        return cast(SudokuOptions, self.options).size

    def _read(self, action: str) -> Grid | str:
        """The grid in an action, or a message that explains why there is none."""
        answer = only_answer(action)
        if answer is None:
            return "there is not exactly one <answer> with its </answer>"
        answer = answer.translate(_LINES)
        digits = "".join(answer.split())
        cells = self._size**2
        if not _DIGITS.fullmatch(answer) or len(digits) != cells:
            return f"the answer is not {cells} digits from 1 to {self._size}"
        return tuple(map(int, digits))

    def _wrong(self, grid: Grid) -> str | None:
        """A message about the first mistake in a grid, or None if the grid is the solution."""
        for cell, (given, digit) in enumerate(zip(self.state.puzzle, grid, strict=True)):
            if given not in (0, digit):
                row, column = divmod(cell, self._size)
                return f"row {row + 1}, column {column + 1} is {given}"
        return mistake(grid, self._size)

    def _right(self, grid: Grid) -> float:
        """The share of empty cells that were filled with the right digit."""
        task = self.state
        cells = [cell for cell, given in enumerate(task.puzzle) if given == 0]
        return sum(grid[cell] == task.solution[cell] for cell in cells) / len(cells)

    def _solve(self, observation: str) -> str:
        puzzle = [0 if cell == "_" else int(cell) for cell in observation.split()]
        (solution,) = solve(puzzle, self._size, limit=2)
        return f"<think> </think> <answer>\n{_to_text(solution, self._size)}\n</answer>"


def _tasks(options: SudokuOptions) -> Tasks[SudokuTask]:
    data = SudokuEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return SudokuTasks(options.split, options.seed, options.size, options.holes)


def _picture(puzzle: Sequence[str], cells: Sequence[str]) -> Picture:
    """The picture of a grid; ``puzzle`` has the given digits."""
    size = math.isqrt(len(cells))
    wrong = {cell for cell, given in enumerate(puzzle) if given not in ("_", cells[cell])}
    for _, unit in units(size):
        digits = [cells[cell] for cell in unit]
        wrong.update(c for c in unit if cells[c] != "_" and digits.count(cells[c]) > 1)

    def drawn(cell: int) -> Cell:
        mark: Mark = "bad" if cell in wrong else "" if puzzle[cell] == "_" else "given"
        return Cell("" if cells[cell] == "_" else cells[cell], mark)

    rows = range(0, size * size, size)
    return Picture("grid", tuple(tuple(map(drawn, range(r, r + size))) for r in rows))


def _to_text(grid: Grid, size: int) -> str:
    rows = (grid[start : start + size] for start in range(0, size * size, size))
    return "\n".join(" ".join(str(digit) if digit else "_" for digit in row) for row in rows)


def _instructions(size: int) -> str:
    return (
        f"Fill in every _, so that each row, column and box of {BOX[size]} by {BOX[size]} holds "
        f"each digit from 1 to {size} once. Think between <think> and </think>, then write the "
        "whole grid between <answer> and </answer>."
    )

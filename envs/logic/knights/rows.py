"""Puzzles from rows: in the layout of K&K and Logic-RL, or a text with its solution.

The text is in ``quiz`` or ``question``. The solution is in ``names`` and ``solution`` (true means
knight), or in a text such as ``solution_text_format``: ``(1) Zoey is a knave (2) Owen is ...``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.datasets import Row, kept_while_unchanged
from envs.datasets.splits import Dataset
from envs.logic.knights.statements import ROLES
from envs.logic.rows import find, load_puzzles, need

_CLAIM = re.compile(r"(\w+) is a (knight|knave)\b")


@dataclass(frozen=True, slots=True, eq=False)
class RowPuzzle:
    """A puzzle as a text, with its solution."""

    question: str
    roles: dict[str, str]
    """Roles, "knight" or "knave", by name."""

    def text(self) -> str:
        """The text of the puzzle."""
        return self.question


@kept_while_unchanged
def load_knights(source: str, columns: str = "") -> Dataset[RowPuzzle]:
    """The puzzles of a source of ``envs.datasets``.

    A source is read again when its files have changed.

    Raises:
        ValueError: a row is not such a puzzle.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    return load_puzzles(source, columns, _read, lambda puzzle: puzzle.question)


def _read(row: Row) -> RowPuzzle:
    question = need(row, "quiz", "question", "puzzle")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"{row.where}: expected a puzzle's text, got {question!r:.40}")
    names, solution = find(row, "names"), find(row, "solution")
    if isinstance(names, list) and isinstance(solution, list) and len(names) == len(solution):
        roles = {
            str(name): ROLES[bool(knight)] for name, knight in zip(names, solution, strict=True)
        }
    else:
        text = need(row, "solution_text_format", "solution_text", "solution", "answer")
        roles = dict(_CLAIM.findall(str(text)))
    if not roles:
        raise ValueError(
            f"{row.where}: expected who is a knight or a knave: names and solution, or a text "
            f"such as '(1) Zoey is a knave'; it has {', '.join(row.columns)}"
        )
    return RowPuzzle(question.strip(), roles)

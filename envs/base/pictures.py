"""Pictures that an environment draws of its own episodes, for the viewer: data, never HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Mark = Literal["", "given", "good", "bad", "added", "removed"]
"""How a cell is shown. given: part of the task. added, removed: a line of a difference."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text in a picture."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A grid of small cells, a table of texts, or the lines of a difference (one cell each)."""

    kind: Literal["grid", "table", "diff"]
    rows: tuple[tuple[Cell, ...], ...]


@runtime_checkable
class Drawable(Protocol):
    """An environment class with pictures. Define ``pictures`` as a classmethod."""

    def pictures(self, observation: str, actions: Sequence[str]) -> Sequence[Picture | None]:
        """A picture of the first observation, and one after each action; None for no picture."""
        ...

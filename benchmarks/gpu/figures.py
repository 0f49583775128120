"""Figures of the benchmark: how a part reports them, and their table."""

from __future__ import annotations

import json
import logging
import math
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("part", "figure", "value", "goal", "peer", "", "note")
LONGEST_NOTE = 72


@dataclass(frozen=True)
class Setup:
    """What all parts are given."""

    device: str
    """A device of torch: "cpu", or a GPU with its index."""
    small: bool
    """Whether sizes are small enough for a CPU. Figures then only show that the code runs."""
    work: Path
    """A folder for models and runs, which all parts share."""
    allow_unsafe: bool = False
    """Whether sampled programs may run without isolation."""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Figure:
    """One number, beside its goal and a peer's figure."""

    part: str
    name: str
    value: float | None = None
    """None: not measured; ``note`` says why."""
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    peer: str = ""
    note: str = ""
    failed: bool = False
    """Whether the measurement itself failed."""

    @property
    def status(self) -> str:
        """What became of it: met or missed (with a goal), measured (without), failed, skipped."""
        if self.failed:
            return "failed"
        if self.value is None:
            return "skipped"
        if self.at_least is None and self.at_most is None:
            return "measured"
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return "met" if low <= self.value <= high else "missed"

    @property
    def goal(self) -> str:
        """The goal as text."""
        sides = ((">=", self.at_least), ("<=", self.at_most))
        return " ".join(f"{sign} {bound:g}" for sign, bound in sides if bound is not None)

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        value = "-" if self.value is None else f"{number(self.value)} {self.unit}".rstrip()
        note = self.note if len(self.note) <= LONGEST_NOTE else f"{self.note[:LONGEST_NOTE]}..."
        return self.part, self.name, value, self.goal, self.peer, self.status, note


def number(value: float) -> str:
    """A count, or a number with three significant digits, without an exponent for usual sizes."""
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(0, min(digits, 4))}f}"
    return f"{value:.2e}"


def table(figures: Sequence[Figure]) -> str:
    """All figures, one a line."""
    rows = [COLUMNS, *(figure.row() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


class Report:
    """Receives the figures of one part, and writes each to a file at once.

    Args:
        part: name of the part.
        file: receives a line of JSON for each figure.
    """

    def __init__(self, part: str, file: Path) -> None:
        self.part = part
        self.path = file

    def __call__(self, name: str, value: float | None, unit: str = "", **about: Any) -> None:
        """Report a figure; ``about`` are further fields of :class:`Figure`."""
        if value is None and not about.get("note"):
            about["note"] = "not known on this device"
        self.write("figure", asdict(Figure(self.part, name, value, unit, **about)))

    def skip(self, name: str, why: str) -> None:
        """Report that a figure is not measured here."""
        self(name, None, note=why)

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """In this context, an error becomes a failed figure ``name``, and the part goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self(name, None, failed=True, note=one_line(error))

    def write(self, kind: str, content: object) -> None:
        """Append a line to the file. It is on the disk when the call returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": self.part, kind: content}) + "\n")
            file.flush()
            os.fsync(file.fileno())


class Warnings(logging.Handler):
    """Collects the messages that the code under test logs as warnings, such as fallbacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, once."""
        message = f"{record.name}: {record.getMessage()}"
        if message not in self.messages:
            self.messages.append(message)


def one_line(error: BaseException) -> str:
    """The error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

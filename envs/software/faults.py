"""Faults: replacements of one line of a correct program by a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_OPERATORS = {
    " > ": " < ",
    " < ": " > ",
    " >= ": " <= ",
    " <= ": " >= ",
    " == ": " != ",
    " != ": " == ",
    " + ": " - ",
    " - ": " + ",
    " * ": " + ",
    " += ": " -= ",
    " *= ": " += ",
    "max(": "min(",
    "min(": "max(",
    ".upper()": ".lower()",
    "[::-1]": "[::1]",
}
_BOUNDS = {" > ": " >= ", " < ": " <= ", " >= ": " > ", " <= ": " < "}
_STARTS = {"0": "1", "1": "0", "[]": "[k]", '""': '"-"', "k": "0", "None": "0"}
_ENDS = ("in xs[1:]:", "in xs[:-1]:")


class Fault(NamedTuple):
    """A wrong line in place of a right one."""

    kind: str
    path: str
    line: int
    """Number of the line, counted from 1."""
    right: str
    wrong: str

    def plant(self, files: Mapping[str, str]) -> dict[str, str]:
        """The files with the fault."""
        lines = files[self.path].splitlines(keepends=True)
        lines[self.line - 1] = self.wrong + "\n"
        return {**files, self.path: "".join(lines)}


KINDS = (
    *("operator", "off-by-one", "default", "start", "swapped", "missing", "wrong-name", "import"),
)
"""Kinds of fault: a wrong operator, an item or bound too many or too few, a wrong default of an
argument, a wrong start, swapped arguments, a missing condition or step, a wrong variable, and an
import of something that does not exist."""


def faults(files: Mapping[str, str]) -> list[Fault]:
    """Every fault that the files can have. Each wrong line occurs nowhere else in its file."""
    return [
        Fault(kind, path, number, line, wrong)
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if '"""' not in line
        for kind, wrong in _wrong(line)
        if wrong != line and wrong not in text
    ]


def _wrong(line: str) -> Iterator[tuple[str, str]]:
    """Each wrong form of a line, with its kind."""
    for right, wrong in _OPERATORS.items():
        if right in line:
            yield "operator", line.replace(right, wrong, 1)
    for right, wrong in _BOUNDS.items():
        if right in line:
            yield "off-by-one", line.replace(right, wrong, 1)
    if line.endswith(" in xs:"):
        for end in _ENDS:
            yield "off-by-one", line.replace("in xs:", end)
    if (number := re.search(r"(?<=[*+-] )\d+|(?<=\[:)\d+", line)) is not None:
        changed = int(number[0]) + 1
        yield "off-by-one", line[: number.start()] + str(changed) + line[number.end() :]
    if (number := re.search(r"(?<=, k=)\d+", line)) is not None:
        for changed in (int(number[0]) + 1, int(number[0]) - 1):
            yield "default", line[: number.start()] + str(changed) + line[number.end() :]
    head, _, start = line.partition(" = ")
    if head.strip() == "result" and start in _STARTS:
        yield "start", f"{head} = {_STARTS[start]}"
    for call in ("keep(x, k)", "step(x, k)"):
        if call in line and not line.startswith("def "):
            yield "swapped", line.replace(call, f"{call[:4]}(k, x)")
            yield "wrong-name", line.replace(call, f"{call[:4]}(x, x)")
    if (difference := re.search(r"(\w+) - (\w+)", line)) is not None:
        yield "swapped", line.replace(difference[0], f"{difference[2]} - {difference[1]}")
    yield from _missing(line)
    if line.startswith("from "):
        yield "import", re.sub(r"^from (\w+)", r"from \1s", line)
        yield "import", f"{line}s"


def _missing(line: str) -> Iterator[tuple[str, str]]:
    """Forms of a line that lack a part, or use another variable."""
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("if "):
        yield "missing", f"{indent}if True:"
    if "step(x, k)" in line:
        yield "missing", line.replace("step(x, k)", "x")
    if line.startswith("    return ") and line != "    return result":
        yield "missing", "    return x"
        if " k" in line:
            yield "wrong-name", re.sub(r" k\b", " x", line)
    if line == "    return result":
        yield "wrong-name", "    return k"
        yield "wrong-name", "    return xs"

"""A task: a description, and the tests that grade its program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.sandbox import Test

_OPENING = re.compile(
    r"```[ \t]*(?:(?P<language>py(?:thon)?[\d.]*)(?![\w-])[^\n`]*|\r?)\n", re.IGNORECASE
)
_CLOSING = re.compile(r"```[ \t]*(?:\r?\n|\Z)")
_FUTURE = re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?:from __future__ import .*\n)+")
"""The beginning of a program that must stay its beginning."""
_TILDES = re.compile(r"^([ \t]*)~~~", re.MULTILINE)
_CODE_INDENT = 4
"""Markdown reads a fence with at least this number of leading blanks as code, not as a fence."""


@dataclass(frozen=True, slots=True)
class CodeTask:
    """One programming task."""

    prompt: str
    """The first observation."""
    entry_point: str
    """The function to write; "" if the task is a whole program."""
    public: tuple[Test, ...]
    """Tests whose results the agent can see; at least one."""
    hidden: tuple[Test, ...]
    """Tests that only the grader uses; at least one."""
    prelude: str = ""
    """Python code before the agent's program: imports, helpers, a signature to complete."""
    reference: str | None = None
    """A program that passes all tests; agents never see it."""
    epilogue: str = ""
    """Python code after the agent's program."""
    packages: frozenset[str] = frozenset()
    """Modules outside of the standard library that the tests import."""

    def source(self, program: str) -> str:
        """The program to run: the agent's program with the code around it.

        An empty answer stays empty.
        """
        if not program.strip():
            return ""
        first = _FUTURE.match(program)
        at = first.end() if first else 0
        return f"{program[:at]}{self.prelude}{program[at:]}{self.epilogue}"


def extract_program(action: str) -> str:
    """The program in an answer: its last fenced block that names Python.

    If no block does, the program is the last fenced block without a language, or else the whole
    answer. A block loses the indentation of its fence, for example in a list.

    A fence at the end of a line closes a block, unless it is indented like code, for example inside
    a string of the program. A block without a closing fence is also read, because the answer may
    have been cut off or may end with the program. In an answer without backticks, three tildes are
    a fence as well.
    """
    if "```" not in action:
        action = _TILDES.sub(r"\1```", action)
    last, at = action, 0
    closings = [
        (*fence.span(), _indent(action, fence.start())) for fence in _CLOSING.finditer(action)
    ]
    first, named = 0, False
    unclosed = -1
    """Largest indentation for which no closing fence follows; the search stops early there."""
    while (opening := _OPENING.search(action, at)) is not None:
        indent = max(_CODE_INDENT - 1, _indent(action, opening.start()))
        while first < len(closings) and closings[first][0] < opening.end():
            first += 1
        closing = None
        if indent > unclosed:
            later = (closings[index] for index in range(first, len(closings)))
            closing = next((fence for fence in later if fence[2] <= indent), None)
        if closing is None:
            # The first fence of any kind, as in "```py\nf()``` does it".
            unclosed = max(unclosed, indent)
            end = action.find("```", opening.end())
            end, at = (end, end + 3) if end >= 0 else (len(action), len(action))
        else:
            end, at, _ = closing
        if opening["language"] or not named:
            named = bool(opening["language"])
            last = _dedented(action[opening.end() : end], _indent(action, opening.start()))
    return last


def _dedented(block: str, indent: int) -> str:
    """The block without up to ``indent`` blanks at the start of each line."""
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", block, flags=re.MULTILINE) if indent else block


def _indent(action: str, at: int) -> int:
    """Number of blanks between the start of a line and ``at``; 0 if other text precedes ``at``."""
    before = action[action.rfind("\n", 0, at) + 1 : at]
    return 0 if before.strip(" \t") else len(before.expandtabs(4))

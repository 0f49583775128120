"""What an episode is about: a description, and the tests that grade its program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.sandbox import Test

_OPENING = re.compile(r"```[ \t]*(?:(?:python|py)[ \t]*)?\n")
_CLOSING = re.compile(r"```[ \t]*(?:\n|\Z)")
_CODE_INDENT = 4
"""Blanks before a fence that make it, in Markdown, a line of what it stands in."""


@dataclass(frozen=True, slots=True)
class CodeTask:
    """One programming task."""

    prompt: str
    """The first observation."""
    entry_point: str
    """The function to write; "" where a whole program is asked for."""
    public: tuple[Test, ...]
    """Tests whose results an agent sees; at least one."""
    hidden: tuple[Test, ...]
    """Tests that only grade; at least one."""
    prelude: str = ""
    """Python that stands before the agent's program: imports, helpers, a signature to complete."""
    reference: str | None = None
    """A program that passes; nothing shows it to an agent."""
    epilogue: str = ""
    """Python that stands behind the agent's program."""

    def source(self, program: str) -> str:
        """What is run: the agent's program with what stands around it.

        Nothing is made of an empty answer.
        """
        return f"{self.prelude}{program}{self.epilogue}" if program.strip() else ""


def extract_program(action: str) -> str:
    """The program in an answer: its last fenced Python block, or all of it where there is none.

    A fence that ends its line closes a block, unless it is indented like code: one inside a string
    of the program does not. A block whose fence was never closed counts: the answer was cut, or
    ends with the program.
    """
    last, at = action, 0
    unclosed = -1
    """The indentation up to which no fence is left that closes: it is not looked for again."""
    while (opening := _OPENING.search(action, at)) is not None:
        indent = max(_CODE_INDENT - 1, _indent(action, opening.start()))
        closing = _closing(action, opening.end(), indent) if indent > unclosed else None
        if closing is None:
            # The first fence of any kind, as in "```py\nf()``` does it".
            unclosed = max(unclosed, indent)
            end = action.find("```", opening.end())
            end, at = (end, end + 3) if end >= 0 else (len(action), len(action))
        else:
            end, at = closing.span()
        last = action[opening.end() : end]
    return last


def _closing(action: str, at: int, indent: int) -> re.Match[str] | None:
    for fence in _CLOSING.finditer(action, at):
        if _indent(action, fence.start()) <= indent:
            return fence
    return None


def _indent(action: str, at: int) -> int:
    """Blanks before a place, where nothing else stands before it in its line; else 0."""
    before = action[action.rfind("\n", 0, at) + 1 : at]
    return 0 if before.strip(" \t") else len(before.expandtabs(4))

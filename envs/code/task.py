"""What an episode is about: a description, and the tests that grade its program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.sandbox import Test

_FENCED = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


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

    A block whose fence was never closed counts: the answer was cut, or ends with the program.
    """
    blocks = _FENCED.findall(action)
    return str(blocks[-1]) if blocks else action

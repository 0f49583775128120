"""What ``benchmarks.speed.steps`` asks of both sides, and how a side takes its turn."""

from __future__ import annotations

import json
import random
import string
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

END = "<|im_end|>"
EVERY = "@step "
"""Begins the line that a process prints for each step."""
TOOL_S = 0.02
RESULT = "r" * 64
QUERY = '<tool_call>\n{"name": "search", "arguments": {"query": "%s"}}\n</tool_call>'
ANSWER = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Workload:
    """A step's episodes."""

    prompts: int
    letters: int
    """Letters of the user's message."""
    turns: int
    new: int
    """Tokens of each message, the end of the message included."""
    group: int = 8

    @property
    def rows(self) -> int:
        """Number of episodes."""
        return self.prompts * self.group

    def texts(self, count: int) -> list[str]:
        """Users' messages."""
        drawn = random.Random(0)
        letters = string.ascii_lowercase
        return ["".join(drawn.choices(letters, k=self.letters)) for _ in range(count)]

    def script(self, turn: int) -> str | None:
        """The message of a turn without its end, or None if it stays as sampled."""
        if self.turns == 1:
            return None
        last = turn + 1 >= self.turns
        room = self.new - 1 - len(ANSWER if last else QUERY % "")
        return ANSWER + "z" * room if last else QUERY % ("q" * room)


WORKLOADS = {
    "single": Workload(prompts=16, letters=45, turns=1, new=128),
    "tools": Workload(prompts=4, letters=34, turns=3, new=80),
}


class Turns:
    """The steps of a process, one for each line of its standard input."""

    def wait(self) -> None:
        """Wait for this process's turn. It ends with the standard input."""
        if not sys.stdin.readline():
            sys.exit(0)
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def report(self, tokens: int, phases: Mapping[str, float]) -> None:
        """Report the step that has just ended."""
        made = {
            "seconds": time.perf_counter() - self._started,
            "cpu_s": time.process_time() - self._cpu,
            "tokens": tokens,
            "phases": dict(phases),
        }
        print(EVERY + json.dumps(made), flush=True)

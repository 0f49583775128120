"""``notes-v0``: four notes, each with one code, and a question about one of them.

An episode::

    Remember the codes.                                   ok
    Note: code of amber 7 . leaf sand leaf moss ...       ok
    Note: code of birch 3 . moss wind leaf sand ...       ok
    (two more notes)                                      ok
    Code of birch ?                                       3

With ``context.compact=summary`` and a limit below the size of two notes, only summaries carry the
codes to the question. The warm start imitates contexts with such summaries
(:meth:`NotesEnv.conversations`), which keep each code with the probability ``KEPT``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agents.context.agent import SUMMARY
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, finish, go_on
from rl.data.conversations import Conversation, Exchange

NAMES = ("amber", "birch", "coral", "delta")
FILLERS = ("leaf", "sand", "moss", "wind", "rain", "clay", "fern", "dust")
NUM_FILLERS = 16
"""Number of words without meaning in a note."""
TASK = "Remember the codes."
INSTRUCTION = "Summary ?"
READ = "ok"
"""The demonstrated reply to a note."""
UNKNOWN = "none"
"""The demonstrated reply to a question about a code that is not in the context."""
KEPT = 0.6
"""Probability with which a demonstrated summary keeps a code."""
FIRST = {"train": 0, "validation": 1_000_000, "test": 2_000_000}
COUNT = {"train": 4000, "validation": 200, "test": 400}


@dataclass(slots=True)
class NotesState:
    """An episode's notes that were not read yet, and its question."""

    notes: list[str]
    question: str
    answer: str
    asked: bool = False
    codes: dict[str, str] = field(default_factory=dict)


def drawn(seed: int, task: int) -> NotesState:
    """The notes of a task, in a random order of names, and the question."""
    rng = np.random.default_rng([seed, task])
    codes = {str(name): str(rng.integers(10)) for name in rng.permutation(NAMES)}
    notes = [
        f"Note: code of {name} {code} . " + " ".join(rng.choice(FILLERS, NUM_FILLERS))
        for name, code in codes.items()
    ]
    name = str(rng.choice(NAMES))
    return NotesState(notes, f"Code of {name} ?", codes[name], codes=codes)


class NotesEnv(TextEnv[int, NotesState]):
    """Notes to remember; see the module's docstring."""

    success_score = "right"

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        first = FIRST[options.split]
        super().__init__(options, range(first, first + COUNT[options.split]), services)

    def begin(self, task: int) -> str:
        """The task, without any code."""
        self.state = drawn(self.options.seed, task)
        return TASK

    def turn(self, action: Action) -> Reply:
        """The next note, the question, or the end."""
        state = self.state
        if state.notes:
            return go_on(state.notes.pop(0))
        if not state.asked:
            state.asked = True
            return go_on(state.question)
        right = float(action.strip() == state.answer)
        return finish({"right": right}, scores={"right": right})

    def conversations(self, tasks: Sequence[int], seed: int) -> list[Conversation]:
        """The contexts of demonstrated episodes, one conversation each."""
        return [
            Conversation(tuple(exchanges))
            for place, task in enumerate(tasks)
            for exchanges in _contexts(
                drawn(self.options.seed, self.tasks[task]), np.random.default_rng([seed, place])
            )
        ]


def _contexts(state: NotesState, rng: np.random.Generator) -> list[list[Exchange]]:
    """The four contexts of an episode; a new one begins before each note but the first.

    The last one is there four times, with a question about each code.
    """
    contexts = [[Exchange(TASK, READ), Exchange(state.notes[0], READ)]]
    known: dict[str, str] = {}
    for (name, code), note in zip(state.codes.items(), state.notes[1:], strict=False):
        known = {k: v for k, v in (known | {name: code}).items() if rng.random() < KEPT}
        summary = " ".join(f"{k} {v}" for k, v in known.items()) or UNKNOWN
        contexts[-1].append(Exchange(INSTRUCTION, summary))
        contexts.append([Exchange(f"{TASK}\n\n{SUMMARY}\n{summary}\n\n{note}", READ)])
    last = [*state.codes][-1]
    known[last] = state.codes[last]
    asked = [
        [*contexts[-1], Exchange(f"Code of {name} ?", known.get(name, UNKNOWN))]
        for name in state.codes
    ]
    return [*contexts[:-1], *asked]

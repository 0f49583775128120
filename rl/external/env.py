"""``env=agent``: tasks for a user's own program, which plays them through ``agents.capture``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.datasets import load_rows
from envs.datasets.splits import Dataset, arrange
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, Reply
from envs.options import Card
from rl.external.program import open_program
from tools.references import is_reference, kept_while_unchanged, load_function, takes

if TYPE_CHECKING:
    from rl.data.conversations import Conversation


@dataclass(frozen=True, kw_only=True)
class AgentOptions(EnvOptions):
    """The program, its tasks and their limits."""

    loop: str = ""
    """Your agent: file.py:function or package.module:function, which is called with a task and a
    base URL; or a command, which reads the task from its standard input and the URL from its
    environment."""
    tasks: str = ""
    """The tasks: JSON lines, Parquet, a folder or a hub id; or file.py:function, which is called
    with the split."""
    demonstrations: str = ""
    """Demonstrations for model=tiny and rl.sft: a file of {"messages": [...]}; or
    file.py:function, which is called with a task and a seed."""
    max_turns: int = 64
    """Maximum number of answers per episode, over all of its conversations."""
    concurrency: int = 0
    """Maximum number of concurrent episodes; 0 plays all episodes of a step at once. Time spent
    waiting does not count as episode time."""
    min_reward: float = 0.0
    """The lowest reward that your loop may return."""
    max_reward: float = 1.0
    """The highest reward that your loop may return."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concurrency < 0:
            raise ValueError(f"concurrency ({self.concurrency}) must be >= 0")
        if not self.min_reward < self.max_reward:
            raise ValueError(
                f"min_reward ({self.min_reward:g}) must be below max_reward ({self.max_reward:g})"
            )
        if self.token_budget:
            raise ValueError(
                f"token_budget ({self.token_budget!r}) must be empty: your loop writes the prompts"
            )


class AgentEnv(TextEnv[Any, None]):
    """Tasks for a program's own loop. ``rl.external.collector`` plays them; ``step`` fails."""

    Options = AgentOptions
    forkable = False
    card = Card(agent="is a program of your own", turns="its own", reward="its own")

    def __init__(self, options: AgentOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _tasks(options.tasks, options.split, options.seed), services)
        self.reward_range = (options.min_reward, options.max_reward)
        self.demonstrations = options.demonstrations

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[Any] | None:
        """The rows that ``tasks`` names, or None if a function returns the tasks."""
        assert isinstance(options, AgentOptions)
        source = options.tasks
        return None if not source or is_reference(source) else _rows(source)

    def begin(self, task: Any) -> str:
        """The task as JSON."""
        self.state = None
        return json.dumps(task)

    def turn(self, action: Action) -> Reply:
        """Always raises: the program plays the episode."""
        raise EnvFailure(
            f"{self}: its episodes are played by a program of your own (rl.train, rl.eval), not by "
            f"step, and it cannot be a part of a mixture",
            retryable=False,
        )

    def conversations(self, tasks: Sequence[int], seed: int) -> list[Conversation]:
        """A function's demonstrations of ``tasks``, or all conversations of a file.

        Raises:
            ValueError: ``env.demonstrations`` is missing, or contains no conversations.
        """
        # Imports transformers: help texts and option errors come before that.
        from rl.data.conversations import conversation_of, read_conversations
        from rl.data.demonstrations import NoDemonstrations

        source, key = self.demonstrations, "env.demonstrations"
        if not source:
            raise NoDemonstrations(
                f"{self} has nothing to imitate: give {key}=, a file of messages or a function"
            )
        if not is_reference(source):
            return read_conversations(source, key)
        function = load_function(source, key)
        try:
            return [conversation_of(function(self.tasks[i], seed + i)) for i in tasks]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"{key} ({source}) must return messages of user (or tool) and assistant in turn, "
                f"after at most one system message ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the user's program and its endpoint."""
        from agents.capture import CaptureServer

        assert isinstance(options, AgentOptions)
        program = open_program(options.loop)
        async with CaptureServer() as server:
            yield {"program": program, "capture": server}


@kept_while_unchanged
def _tasks(source: str, split: str, seed: int) -> Sequence[Any]:
    """The tasks of a split."""
    if not source:
        raise ValueError(
            "env.tasks ('') must name tasks: JSON lines, Parquet, a hub id, or file.py:function"
        )
    if not is_reference(source):
        return _rows(source).split(split)
    function = load_function(source, "env.tasks")
    return list(function(split, **({"seed": seed} if takes(function, "seed") else {})))


@kept_while_unchanged
def _rows(source: str) -> Dataset[Mapping[str, Any]]:
    """The rows of a data set."""
    rows = load_rows(source)
    found = ((row, json.dumps(row.columns, sort_keys=True), row.columns) for row in rows)
    return arrange(found, source)

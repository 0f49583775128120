"""The record that a replay of an episode needs: the episode's id and its tool results.

A :class:`ToolTap` stands between an environment and its services. A :class:`Recorder` records each
tool call, and a :class:`Replayer` answers tool calls from a record. Services that are not tools (a
grading sandbox, a verifier) run again in a replay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envs.base.services import ServiceLease
from envs.options import EnvOptions
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult


class NotRecorded(ToolFailure):
    """Raised by a replayed tool when the record has no such call."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Identifies an episode, so that a replay can start it again."""

    env_id: str
    options: EnvOptions
    task: int
    """Index of the task in the options' split."""
    seed: int | None
    """Seed of the reset. None if the reset had no seed; such an episode cannot be replayed."""
    part: str = ""
    """In a mixture, the name of the part that was played."""


@dataclass(slots=True)
class RecordedCall:
    """One call of a tool service, with its result."""

    turn: int
    """Number of the action that made the call, counted from 1. A call in ``begin``, before the
    first action, has 0."""
    service: str
    """The service's name."""
    arguments: dict[str, Any]
    text: str
    data: Any = None
    """The plain data of the result. None if the result has no data or JSON cannot hold it."""
    error: str | None = None
    cost: float = 0.0

    def answer(self) -> ToolResult:
        """The tool's result."""
        return ToolResult(self.text, self.data, self.error, self.cost)


@dataclass(slots=True)
class RecordedTool:
    """A tool's name, description and JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolTap:
    """Gives an environment its services. The base class neither records nor replays."""

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """The service called ``name``."""
        return (await lease.get())[name]

    def fork(self) -> ToolTap:
        """The tool tap of a copy of the episode."""
        return self


@dataclass
class Recorder(ToolTap):
    """Records the tool calls of one episode."""

    turn: int = 0
    """Number of actions so far, including the current one. The caller of ``step`` sets it."""
    calls: list[RecordedCall] = field(default_factory=list)
    tools: dict[str, RecordedTool] = field(default_factory=dict)
    """The tools that the environment used, by the name of their service."""
    on_tool: Callable[[bool], None] = lambda busy: None
    """Called with True when a call starts while no other is in progress, and with False when the
    last call in progress ends."""
    num_pending: int = field(default=0, compare=False)
    """Number of calls in progress."""

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """The service called ``name``. If it is a tool, its calls are recorded."""
        service = await super().find(name, lease)
        if not isinstance(service, Tool):
            return service
        if name not in self.tools:
            schema = _plain(service.parameters)
            self.tools[name] = RecordedTool(service.name, service.description, schema)
        return _RecordingTool(service, name, self)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a call as pending while the context lasts."""
        self.num_pending += 1
        if self.num_pending == 1:
            self.on_tool(True)
        try:
            yield
        finally:
            self.num_pending -= 1
            if self.num_pending == 0:
                self.on_tool(False)

    def fork(self) -> Recorder:
        """A recorder for a copy of the episode. It starts with a copy of this record."""
        return Recorder(self.turn, [*self.calls], {**self.tools})


class Replayer(ToolTap):
    """Answers tool calls from the record of an episode.

    Args:
        calls: the recorded calls.
        tools: the recorded tools, by service.
    """

    def __init__(self, calls: Sequence[RecordedCall], tools: Mapping[str, RecordedTool]) -> None:
        self.turn = 0
        self.left = list(calls)
        """Recorded calls that the replay has not repeated yet."""
        self.unknown: list[str] = []
        """Calls of the replay that the record does not hold."""
        self._tools = tools

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """The service called ``name``. If it is a tool, it answers only from the record."""
        if name in self._tools:
            return _ReplayedTool(self._tools[name], name, self)
        service = await super().find(name, lease)
        if not isinstance(service, Tool):
            return service
        known = RecordedTool(service.name, service.description, dict(service.parameters))
        return _ReplayedTool(known, name, self)

    def fork(self) -> Replayer:
        """A replayer for a copy of the episode; its record holds the calls not yet replayed."""
        twin = Replayer(self.left, self._tools)
        twin.turn = self.turn
        return twin

    def answer(self, service: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The recorded result of a call with this service and these arguments in this turn.

        Raises:
            NotRecorded: the record has no such call.
        """
        plain = _plain(arguments)
        for index, call in enumerate(self.left):
            if (call.turn, call.service, call.arguments) == (self.turn, service, plain):
                return self.left.pop(index).answer()
        self.unknown.append(f"{service} {json.dumps(plain, ensure_ascii=False)}")
        raise NotRecorded(
            f"turn {self.turn}: the record holds no answer to {self.unknown[-1]}", retryable=False
        )


class _RecordingTool(Tool):
    """A tool whose calls are recorded."""

    def __init__(self, tool: Tool, service: str, recorder: Recorder) -> None:
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters
        self.stateful = tool.stateful
        self._tool, self._service, self._recorder = tool, service, recorder

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        plain, turn = _plain(arguments), self._recorder.turn
        with self._recorder.calling():
            result = await self._tool(arguments, context)
        try:
            data = _plain(result.data)
        except (TypeError, ValueError):
            data = None
        call = RecordedCall(
            turn, self._service, plain, result.text, data, result.error, result.cost
        )
        self._recorder.calls.append(call)
        return result

    async def fork(self, session: str, twin: str) -> None:
        await self._tool.fork(session, twin)

    async def end(self, session: str) -> None:
        await self._tool.end(session)


class _ReplayedTool(Tool):
    """A tool that answers from a record; it keeps no state."""

    def __init__(self, tool: RecordedTool, service: str, replayer: Replayer) -> None:
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters
        self._service, self._replayer = service, replayer

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        return self._replayer.answer(self._service, arguments)


def _plain(value: Any) -> Any:
    """A copy of plain data after a round trip through JSON.

    Raises:
        TypeError, ValueError: JSON cannot hold the value.
    """
    return json.loads(json.dumps(value))

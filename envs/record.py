"""What makes an episode a story that can be played again: who it was, and what tools answered.

A :class:`ToolTap` stands between an environment and its services. A :class:`Recorder` writes down
every call of a tool, a :class:`Replayer` answers from what was written down. Other services (a
sandbox that grades, a verifier) are no tools: they are asked again.
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
    """Raised by a tool that is asked what the record holds no answer to."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """What begins an episode once more."""

    env_id: str
    options: EnvOptions
    task: int
    """Index of the task in the options' split."""
    seed: int | None
    """Of the reset; None: the environment's generator went on, and nothing begins it again."""
    part: str = ""
    """Of a mixture: the name of the part whose episode it is."""


@dataclass(slots=True)
class RecordedCall:
    """One call of a tool that is a service, as it was asked and answered."""

    turn: int
    """The action, counted from 1, that led to it; 0: it was made before the first."""
    service: str
    """The service's name."""
    arguments: dict[str, Any]
    text: str
    data: Any = None
    """As plain data; None also where JSON cannot hold it."""
    error: str | None = None
    cost: float = 0.0

    def answer(self) -> ToolResult:
        """What the tool answered."""
        return ToolResult(self.text, self.data, self.error, self.cost)


@dataclass(slots=True)
class RecordedTool:
    """What a tool says of itself."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolTap:
    """Hands an environment its services; this one neither hears nor says anything."""

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """The service called ``name``."""
        return (await lease.get())[name]

    def fork(self) -> ToolTap:
        """That of a copy of the episode, which goes on for itself."""
        return self


@dataclass
class Recorder(ToolTap):
    """Writes down what tools are asked and answer in one episode."""

    turn: int = 0
    """Set by whoever plays: how many actions were taken, the one being answered included."""
    calls: list[RecordedCall] = field(default_factory=list)
    tools: dict[str, RecordedTool] = field(default_factory=dict)
    """By service, those that the environment asked for."""
    on_tool: Callable[[bool], None] = lambda busy: None
    """Told when a tool is asked while none was, and when the last one answered."""
    num_asked: int = field(default=0, compare=False)
    """Calls that were not answered yet."""

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """As :meth:`ToolTap.find`; a tool's calls are written down."""
        service = await super().find(name, lease)
        if not isinstance(service, Tool):
            return service
        if name not in self.tools:
            said = (service.name, service.description, _plain(service.parameters))
            self.tools[name] = RecordedTool(*said)
        return _Heard(service, name, self)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While the context lasts, a tool is asked."""
        self.num_asked += 1
        if self.num_asked == 1:
            self.on_tool(True)
        try:
            yield
        finally:
            self.num_asked -= 1
            if self.num_asked == 0:
                self.on_tool(False)

    def fork(self) -> Recorder:
        """A record that begins with what this one holds."""
        return Recorder(self.turn, [*self.calls], {**self.tools})


class Replayer(ToolTap):
    """Answers tools' calls from the record of an episode.

    Args:
        calls: what was asked and answered.
        tools: what the tools said of themselves.
    """

    def __init__(self, calls: Sequence[RecordedCall], tools: Mapping[str, RecordedTool]) -> None:
        self.turn = 0
        self.left = list(calls)
        """What was not asked again yet."""
        self.unheard: list[str] = []
        """What was asked that the record holds no answer to."""
        self._tools = tools

    async def find(self, name: str, lease: ServiceLease) -> Any:
        """As :meth:`ToolTap.find`; a tool answers from the record alone."""
        if name in self._tools:
            return _Answered(self._tools[name], name, self)
        service = await super().find(name, lease)
        if not isinstance(service, Tool):
            return service
        said = RecordedTool(service.name, service.description, dict(service.parameters))
        return _Answered(said, name, self)

    def fork(self) -> Replayer:
        """A replay of what is left of this one."""
        twin = Replayer(self.left, self._tools)
        twin.turn = self.turn
        return twin

    def answer(self, service: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What ``service`` answered to these arguments in this turn.

        Raises:
            NotRecorded: it was not asked that.
        """
        asked = _plain(arguments)
        for place, call in enumerate(self.left):
            if (call.turn, call.service, call.arguments) == (self.turn, service, asked):
                return self.left.pop(place).answer()
        self.unheard.append(f"{service} {json.dumps(asked, ensure_ascii=False)}")
        raise NotRecorded(
            f"turn {self.turn}: the record holds no answer to {self.unheard[-1]}", retryable=False
        )


class _Heard(Tool):
    """A tool whose calls are written down."""

    def __init__(self, tool: Tool, service: str, recorder: Recorder) -> None:
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters
        self.stateful = tool.stateful
        self._tool, self._service, self._recorder = tool, service, recorder

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        asked, turn = _plain(arguments), self._recorder.turn
        with self._recorder.asking():
            result = await self._tool(arguments, context)
        try:
            data = _plain(result.data)
        except (TypeError, ValueError):
            data = None
        call = RecordedCall(
            turn, self._service, asked, result.text, data, result.error, result.cost
        )
        self._recorder.calls.append(call)
        return result

    async def fork(self, session: str, twin: str) -> None:
        await self._tool.fork(session, twin)

    async def end(self, session: str) -> None:
        await self._tool.end(session)


class _Answered(Tool):
    """A tool that answers from a record; it keeps nothing for an episode."""

    def __init__(self, said: RecordedTool, service: str, replayer: Replayer) -> None:
        self.name, self.description, self.parameters = said.name, said.description, said.parameters
        self._service, self._replayer = service, replayer

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        return self._replayer.answer(self._service, arguments)


def _plain(value: Any) -> Any:
    """A copy of plain data as JSON would give it back.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
    """
    return json.loads(json.dumps(value))

"""The base class of environments whose agents call the tools in the option ``tools=``.

Tools are services, opened once for all episodes. An episode has a session with each tool. A fork
copies the session, and the end of the episode closes it. A snapshot holds the calls of tools with
state; a restored environment repeats these calls before its next call.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar, cast

from envs.base.deadlines import bounded
from envs.base.loop import loop_thread
from envs.base.sessions import ToolSession, new_name
from envs.env import EnvOptions, Snapshot, Tasks, TextEnv
from envs.episode import EnvToolCall, NotForkable, StepResult, ToolResults
from tools.calls import schema_of, tool_rules, with_tools
from tools.chat_calls import typed_call
from tools.registration import make_tools, replaced
from tools.syntax import Call, Syntax
from tools.tool import Tool, ToolFailure, ToolResult

TaskT = TypeVar("TaskT")
StateT = TypeVar("StateT")


def named_tools(text: str) -> Mapping[str, Tool]:
    """The tools that a text names. They are not opened: only names and schemas can be read.

    Raises:
        ValueError: as ``make_tools``; or a tool cannot be made, for example because its server
            does not start.
        UnknownNameError, PluginImportError: as ``tools.registration.make_tools``.
    """
    return _named_tools(text, replaced())


@lru_cache(maxsize=16)
def _named_tools(text: str, _: int) -> Mapping[str, Tool]:
    """The tools of a text, cached until a tool is replaced."""
    try:
        return make_tools(text)
    except ToolFailure as error:
        raise ValueError(f"tools ({text}): {error}") from error


@dataclass(frozen=True, kw_only=True)
class ToolOptions(EnvOptions):
    """Options of an environment whose agents call tools."""

    tools: str = ""
    """Tools that the agent may call besides the environment's own, as in "calculator,
    lookup(limit=3)". Each call takes a turn, and so does the answer."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if named_tools(self.tools) and self.max_turns < 2:
            raise ValueError(
                f"tools ({self.tools}) need max_turns ({self.max_turns}) >= 2: a call takes a "
                f"turn, and so does the answer"
            )


class ToolEnv(TextEnv[TaskT, StateT]):
    """Base class of environments whose agents call tools.

    The ``turn`` of a subclass finds calls by ``self.syntax.calls(action)``, awaits :meth:`call` for
    each, and returns the results' texts and records: ``go_on(self.put_back([(call.tool,
    result.text)]), tool_calls=[record])``.

    The base class appends :attr:`tool_rules` to the class's ``system_prompt``, unless
    ``options.instructions`` is false. A subclass that sets ``self.system_prompt`` after
    ``super().__init__`` includes :attr:`tool_rules` itself; ``check_env`` tests that the model
    reads the name of every tool.

    Args:
        options: options of a class derived from :class:`ToolOptions`.
        tasks: as for the base class.
        services: as for the base class. A tool is a service under its own name.
        syntax: the text format of calls.

    Raises:
        ValueError: a tool has the name of one of the environment's own tools or services, or a name
            that the syntax cannot write.
    """

    Options = ToolOptions
    own_tools: ClassVar[tuple[str, ...]] = ()
    """Names of the tools that every episode has. They are services that ``open_services`` opens."""
    other_services: ClassVar[tuple[str, ...]] = ()
    """Names of services of ``open_services`` that are not tools. No tool may have such a name."""

    def __init__(
        self,
        options: ToolOptions,
        tasks: Tasks[TaskT],
        services: Mapping[str, Any] | None = None,
        *,
        syntax: Syntax,
    ) -> None:
        super().__init__(options, tasks, services)
        self.named_tools: Mapping[str, Tool] = named_tools(options.tools)
        """The tools of ``options.tools``, for their schemas only. :meth:`call` calls the open
        ones."""
        taken = sorted({*self.own_tools, *self.other_services} & {*self.named_tools})
        if taken:
            raise ValueError(f"tools ({options.tools}): the environment has a {taken[0]!r} already")
        self.syntax = with_tools(syntax, self.named_tools)
        self.tool_rules = tool_rules(self.syntax, self.named_tools)
        """Instructions for the model: how to call each tool of ``options.tools``."""
        if self.tool_rules and options.instructions:
            self.system_prompt = "\n".join(filter(None, [self.system_prompt, self.tool_rules]))
        if self.syntax.form == "chat" and options.instructions:
            self.tool_schemas = tuple(schema_of(tool) for tool in self.named_tools.values())
        self._sessions: dict[str, ToolSession] = {}
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._episode = ""
        """Name under which the tools keep the episode's state; empty before the first call."""

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the named tools. A subclass that has other services adds them."""
        made = make_tools(cast(ToolOptions, options).tools)
        async with AsyncExitStack() as stack:
            for tool in made.values():
                stack.push_async_callback(tool.close)
                await tool.open()
            yield made

    async def call(self, call: Call) -> tuple[ToolResult, EnvToolCall]:
        """Make a call and return its result and its record.

        If the agent made a mistake, such as an unknown tool, the result is an error message.

        Raises:
            EnvFailure: the tool failed.
        """
        known, error = (*self.own_tools, *self.named_tools), call.error
        seconds: float | None = None
        if error is None and call.tool not in known:
            error = f"there is no tool {call.tool!r}; there is: {', '.join(known) or 'none'}"
        if error is not None:
            result = ToolResult(f"Error: {error}", error=error)
        else:
            tool = cast(Tool, await self.service(call.tool))
            call = typed_call(call, tool.parameters)
            result, seconds = await self._call_session(call, tool)
        return result, EnvToolCall.of(call.tool, call.arguments, result, seconds)

    def put_back(self, results: Sequence[tuple[str, str]]) -> str:
        """The observation that shows the results of a message's calls.

        Args:
            results: the name of the tool and the text of the result, for each call.
        """
        if self.syntax.form == "chat":
            return ToolResults.of(results)
        return "".join(self.syntax.wrap(text) for _, text in results)

    def is_final(self, call: Call) -> bool:
        """Whether a call submits an answer. In the last turn, no other call is made."""
        tool = self.named_tools.get(call.tool)
        return call.error is None and tool is not None and tool.final

    async def prepare_tools(self, episode: str) -> None:
        """Prepare the services for the episode's first call, for example with the task's files.

        Also called after a restore, before the calls are repeated.

        Args:
            episode: name under which the tools keep the episode's state.
        """

    async def _call_session(self, call: Call, tool: Tool) -> tuple[ToolResult, float]:
        """The result of a call, and its duration in seconds."""
        if not self._episode:
            episode = new_name()
            await self.prepare_tools(episode)
            # Only now: after a failure, the next episode prepares its own state.
            self._episode = episode
            # After a restore: repeating the calls, in their order, rebuilds the tools' state.
            for name, arguments in self._calls:
                await self._session(name, cast(Tool, await self.service(name))).call(arguments)
        start = time.perf_counter()
        result = await self._session(call.tool, tool).call(call.arguments)
        seconds = time.perf_counter() - start
        if tool.stateful:
            self._calls.append((call.tool, dict(call.arguments)))
        return result, seconds

    def _session(self, name: str, tool: Tool) -> ToolSession:
        if name not in self._sessions:
            timeout_s = self.options.step_timeout_s
            self._sessions[name] = ToolSession(tool, timeout_s, self._episode)
        return self._sessions[name]

    # ---- the ends of sessions --------------------------------------------------------------

    async def _end_sessions(self) -> None:
        sessions, self._sessions, self._episode = self._sessions, {}, ""
        for session in sessions.values():
            await session.end()

    def _end_now(self) -> None:
        if self._sessions:
            self._wait(self._end_sessions())

    async def _aend(self) -> None:
        if self._sessions:
            await bounded(self._end_sessions(), self._name, self.options.step_timeout_s)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, and end the tool sessions of the previous one."""
        self._end_now()
        self._calls = []
        return super().reset(seed=seed, options=options)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Asynchronous form of :meth:`reset`."""
        await self._aend()
        self._calls = []
        return await super().areset(seed=seed, options=options)

    def step(self, action: str) -> StepResult:
        """Take one action. The end of the episode ends its tool sessions."""
        result = super().step(action)
        if result.terminated or result.truncated:
            self._end_now()
        return result

    async def astep(self, action: str) -> StepResult:
        """Asynchronous form of :meth:`step`."""
        result = await super().astep(action)
        if result.terminated or result.truncated:
            await self._aend()
        return result

    def close(self) -> None:
        """Close the environment, and end the episode's tool sessions."""
        self._end_now()
        super().close()

    async def aclose(self) -> None:
        """Asynchronous form of :meth:`close`."""
        await self._aend()
        await super().aclose()

    # ---- copies ----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A snapshot that includes the tool calls that a restored episode repeats."""
        inner = super().snapshot()
        return Snapshot(inner.env_id, pickle.dumps((inner.payload, self._calls)))

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot. A tool's next call first repeats the snapshot's calls."""
        self._end_now()
        self._resume(snapshot)

    async def arestore(self, snapshot: Snapshot) -> None:
        """Asynchronous form of :meth:`restore`."""
        await self._aend()
        self._resume(snapshot)

    def _resume(self, snapshot: Snapshot) -> None:
        inner, calls = snapshot.payload, self._calls
        if snapshot.env_id == self.env_id:  # The base class refuses another id.
            inner, calls = pickle.loads(snapshot.payload)
        super().restore(Snapshot(snapshot.env_id, inner))
        self._calls = calls

    def fork(self, reseed: int | None = None) -> Self:
        """A copy of the environment in the same state, with copies of the tools' sessions.

        Raises:
            NotForkable: a tool cannot copy its session.
        """
        self._check_tools()
        if not self._sessions:
            return super().fork(reseed)
        return loop_thread.run(self.afork(reseed))

    async def afork(self, reseed: int | None = None) -> Self:
        """Asynchronous form of :meth:`fork`."""
        self._check_tools()
        twin = await super().afork(reseed)
        try:
            twin._episode = new_name() if self._episode else ""
            for name, session in self._sessions.items():
                tool = cast(Tool, await twin.service(name))
                twin._sessions[name] = await session.fork(tool, twin._episode)
        except BaseException:
            await twin.aclose()
            raise
        return twin

    def _check_tools(self) -> None:
        for name, tool in self.named_tools.items():
            if not tool.forkable:
                raise NotForkable(f"{self._name}: tool {name!r} cannot copy an episode's state")

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._sessions, twin._calls, twin._episode = {}, [], ""
        return twin

"""``harbor-v0``: tasks in Harbor's format, each in a Docker container or a sandbox of its own.

The agent reads a task's instruction and calls tools in its workspace, a container or, with
``backend=sandbox``, a sandbox with this machine's programs. A message without a call ends
the agent's work, and so do the turn limit and the task's time for commands. Only then are the
task's tests copied into the workspace, or started in one of their own, and their reward is
the episode's. A container that ends, an image that cannot be built, and tests that write no reward
are failures (``EnvFailure``), never rewards.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from envs.datasets.splits import Dataset, EmptySplit
from envs.env import EnvOptions
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.harbor.containers import Containers
from envs.harbor.gold import ReferencePolicy
from envs.harbor.host_image import refusal_with_network, refusal_without_network
from envs.harbor.sandboxes import SandboxBackend, limits_warning, make_task_sandbox
from envs.harbor.tasks import HarborTask, load_tasks, storage_warning
from envs.harbor.verifier import REWARD, ContainerBackend
from envs.harbor.workspaces import JUDGE, Backend, JudgeTool, TaskWorkspaces
from envs.options import Card
from envs.tool_env import ToolEnv, ToolOptions
from tools.calls import listed, schema_of
from tools.chat_calls import CHAT
from tools.registration import make_tools
from tools.sandbox import SandboxUnavailable
from tools.syntax import JSON_CALL, TAGS, Call
from tools.tool import Tool
from tools.workspace import WorkspaceFailure
from tools.workspace.docker import NO_TIME, Engine, ImageBuilder
from tools.workspace.tool import WorkspaceTool

logger = logging.getLogger(__name__)
INSTRUCTIONS = (
    "You solve a task in a Linux container. When the task is done, say so in a message without a "
    "call. Then hidden tests decide."
)
OUT_OF_TIME = f"[{NO_TIME}]"
"""What ``bash`` answers when the task's time for commands is used up."""
SYNTAXES = {syntax.name: syntax for syntax in (TAGS, JSON_CALL, CHAT)}
_GOLD_S = 300.0
"""Time limit of the reference solution's calls in seconds, the largest that ``bash`` allows."""


@dataclass(frozen=True, kw_only=True)
class HarborOptions(ToolOptions):
    """Options of the tasks, the tools and the workspaces."""

    tasks: str = ""
    """A task folder, or a folder of task folders. Subfolders called train, validation and test
    name the split of their tasks."""
    only: str = ""
    """Patterns of task names with commas between them, as in "git-*, sort-csv". Other tasks are
    left out."""
    max_turns: int = 30
    """Maximum number of messages per episode."""
    tools: str = "bash, edit, read"
    """Tools that the agent may call."""
    syntax: str = "json"
    """Text format of calls: "json" for Hermes's format, "tags", or "chat" for the format of the
    model's own chat template."""
    backend: str = "docker"
    """Where tasks run: "docker", or "sandbox" for bubblewrap with this machine's programs. In a
    sandbox run only tasks without an image, or whose image is this machine's own."""
    network: bool = True
    """Whether a task has the network that its task.toml asks for. False: no task has one."""
    host_env: str = ""
    """Names of this process's variables, with commas between them, that a task.toml may read."""
    timeout_factor: float = 1.0
    """Factor for the time limits in task.toml, for a slow or busy machine."""
    step_timeout_s: float = 3600.0
    """Seconds that a step may wait before it fails (EnvFailure, retryable). A step may build an
    image and run tests, which have shorter limits of their own."""

    def __post_init__(self) -> None:
        given: object = self.tasks
        if isinstance(given, Path):
            object.__setattr__(self, "tasks", str(given))
        super().__post_init__()
        if self.syntax not in SYNTAXES:
            known = ", ".join(SYNTAXES)
            raise ValueError(f"syntax ({self.syntax!r}) must be one of {known}")
        if self.backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ValueError(f"backend ({self.backend!r}) must be one of {known}")
        if not self.timeout_factor > 0:
            raise ValueError(f"timeout_factor ({self.timeout_factor}) must be > 0")


@dataclass(slots=True)
class HarborState:
    """An episode's state. The files are in the workspace."""

    name: str
    """Name of the task."""


class HarborEnv(ToolEnv[HarborTask, HarborState]):
    """Harbor's tasks; see the module's docstring for the protocol."""

    Options = HarborOptions
    card = Card(
        agent="solves terminal and software tasks in Harbor's format, with a shell and an editor",
        reward="what the task's tests write, from 0 to 1",
        needs="a folder of tasks, and a Docker engine or a sandbox",
    )
    forkable = False
    other_services = ("workspaces", JUDGE, "sandbox")

    def __init__(self, options: HarborOptions, services: Mapping[str, Any] | None = None) -> None:
        try:
            tasks = _load(options).split(options.split)
        except EmptySplit as error:
            raise ValueError(
                f"tasks ({options.tasks}): no task is in split {options.split!r}: name folders "
                f"train, validation and test, or set split=all"
            ) from error
        super().__init__(options, tasks, services, syntax=SYNTAXES[options.syntax])
        self.stop, self.continues = self.syntax.stop, self.syntax.continues
        rules = self.tool_rules
        if options.syntax == JSON_CALL.name:
            rules = listed([schema_of(tool) for tool in self.named_tools.values()])
        if options.instructions:
            self.system_prompt = "\n".join(filter(None, [INSTRUCTIONS, rules]))

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[HarborTask] | None:
        """The tasks of all splits."""
        chosen = cast(HarborOptions, options)
        return _load(chosen)

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the backend, the workspaces of all episodes, and the tools that act in them."""
        chosen = cast(HarborOptions, options)
        data = _load(chosen)
        async with AsyncExitStack() as stack:
            backend = await BACKENDS[chosen.backend](chosen, data.tasks, stack)
            workspaces = TaskWorkspaces(backend, {task.name: task for task in data.tasks})
            stack.push_async_callback(workspaces.close)
            made: dict[str, Tool] = make_tools(chosen.tools)
            for tool in made.values():
                if isinstance(tool, WorkspaceTool):
                    tool.pool = workspaces
                stack.push_async_callback(tool.close)
                await tool.open()
            services = {**made, JUDGE: JudgeTool(workspaces), "workspaces": workspaces}
            if isinstance(backend, SandboxBackend):
                services["sandbox"] = backend.sandbox
            yield services

    def begin(self, task: HarborTask) -> str:
        """The task's instruction. The workspace starts at the first call."""
        self.state = HarborState(task.name)
        return task.instruction

    async def prepare_tools(self, episode: str) -> None:
        """Give the episode the task's workspace."""
        workspaces = await self.service("workspaces")
        try:
            await workspaces.start_task(episode, self.state.name)
        except WorkspaceFailure as error:
            why = f"{self}: task {self.state.name}: {error}"
            raise EnvFailure(why, retryable=error.retryable) from error

    async def turn(self, action: Action) -> Reply:
        """Make the calls of a message, or run the tests."""
        calls = self.syntax.calls(action)
        if not calls:
            rewards, scores = await self._judge()
            return finish(rewards, scores=scores)
        records, results = list[EnvToolCall](), list[tuple[str, str]]()
        for call in calls:
            result, record = await self.call(call)
            records.append(record)
            results.append((call.tool, result.text))
            if (self.is_final(call) and result.error is None) or result.text == OUT_OF_TIME:
                rewards, scores = await self._judge()
                return finish(rewards, scores=scores, tool_calls=records)
        if self.turns_left == 1:
            rewards, scores = await self._judge()
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores, tool_calls=records)
        return go_on(self.put_back(results), tool_calls=records)

    def gold_policy(self) -> Callable[[str], str]:
        """The task's reference solution, which no agent sees."""
        chosen = cast(HarborOptions, self.options)
        tasks = [self.tasks[index] for index in range(len(self.tasks))]
        tagged = chosen.syntax == TAGS.name
        return ReferencePolicy(tasks, tagged=tagged, timeout_s=_GOLD_S)

    async def _judge(self) -> tuple[dict[str, float], dict[str, float]]:
        """The reward of the task's tests; their other numbers are scores."""
        tool = cast(Tool, await self.service(JUDGE))
        judged, _ = await self._call_session(Call(JUDGE, {"task": self.state.name}, 0), tool)
        found = {str(name): float(value) for name, value in (judged.data or {}).items()}
        low, high = self.reward_range
        reward = found.pop(REWARD)
        if not low <= reward <= high:
            raise EnvFailure(
                f"{self}: task {self.state.name}: the tests' reward ({reward:g}) is outside "
                f"{low:g} to {high:g}",
                retryable=False,
            )
        return {"tests": reward}, {**found, "solved": float(reward == high)}


async def _docker(
    chosen: HarborOptions, tasks: Sequence[HarborTask], stack: AsyncExitStack
) -> Backend:
    """The backend of containers; the stack closes its engine."""
    if line := storage_warning(tasks):
        logger.warning(line)
    try:
        engine = await stack.enter_async_context(Engine())
    except WorkspaceFailure as error:
        raise EnvFailure(f"harbor-v0: {error}", retryable=error.retryable) from error
    containers = Containers(
        engine=engine,
        images=ImageBuilder(engine),
        network=chosen.network,
        host_env=_names(chosen.host_env),
        factor=chosen.timeout_factor,
    )
    return ContainerBackend(containers)


async def _sandbox(
    chosen: HarborOptions, tasks: Sequence[HarborTask], stack: AsyncExitStack
) -> Backend:
    """The backend of sandboxes; the stack closes its sandbox."""
    if line := limits_warning(tasks):
        logger.warning(line)
    try:
        sandbox = await stack.enter_async_context(make_task_sandbox(tasks))
    except SandboxUnavailable as error:
        raise EnvFailure(f"harbor-v0: {error}", retryable=False) from error
    return SandboxBackend(sandbox, _names(chosen.host_env), chosen.timeout_factor)


BACKENDS: dict[
    str, Callable[[HarborOptions, Sequence[HarborTask], AsyncExitStack], Awaitable[Backend]]
] = {"docker": _docker, "sandbox": _sandbox}
"""Functions that open a backend, by name."""


def _load(options: HarborOptions) -> Dataset[HarborTask]:
    """The tasks of all splits."""
    refusal = None
    if options.backend == "sandbox":
        refusal = refusal_with_network if options.network else refusal_without_network
    return load_tasks(options.tasks, options.only, refusal)


def _names(listed_names: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in listed_names.split(","))))

"""``swe-mini-v0``: find and mend the fault in a small repository, by reading and changing files.

The agent calls tools in a workspace of its own. A message without a call ends the episode, and so
does the turn limit. Then the modules are loaded in a fresh sandbox, in which hidden tests call
them. The reward is 1 if all hidden tests pass. Nothing else of the workspace counts: neither its
tests nor other files, processes or settings.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from envs.env import EnvOptions
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.options import Card
from envs.software.faults import KINDS
from envs.software.grading import ENTRY_POINT, CollectTool, bundle
from envs.software.programs import MAIN, MAX_FILES
from envs.software.scripted_policies import CarelessPolicy, GoldPolicy
from envs.software.tasks import SoftwareTask, software_tasks
from envs.tool_env import ToolEnv, ToolOptions, named_tools
from tools.builtin.workspaces import pool_of
from tools.calls import listed, schema_of
from tools.chat_calls import CHAT
from tools.registration import make_tools
from tools.sandbox import AnySandbox, SandboxFailure, Verdict
from tools.syntax import JSON_CALL, TAGS, Call
from tools.tool import Tool
from tools.workspace.tool import WorkspaceTool

INSTRUCTIONS = (
    "You mend a small Python repository in which one line is wrong. When it is mended, say so in a "
    "message without a call. Then hidden tests decide."
)
SYNTAXES = {syntax.name: syntax for syntax in (TAGS, JSON_CALL, CHAT)}
GRADE_S = 10.0
"""Seconds that the hidden tests of one episode may take together."""


@dataclass(frozen=True, kw_only=True)
class SweMiniOptions(ToolOptions):
    """Options of the repositories, the tools and the sandbox."""

    max_turns: int = 12
    """Maximum number of messages per episode."""
    tools: str = "bash, edit, read"
    """Tools that the agent may call, such as "bash", or "read, fix" for the smallest actions. They
    must allow reading and changing files."""
    files: int = 3
    """Number of modules, from 1 to 4. With 1, everything is in main.py."""
    faults: str = "all"
    """Kinds of fault with commas between them, as in "operator, off-by-one", or "all"."""
    show: bool = False
    """Whether the first message shows main.py with line numbers."""
    feedback: str = "results"
    """ "results" shows what a call returned. "blank" shows it with "?" in place of each letter and
    digit, to measure the value of the results."""
    syntax: str = "tags"
    """Text format of calls: "tags", "json" for Hermes's format, or "chat" for the format of the
    model's own chat template."""
    sandbox: str = "auto"
    """The sandbox's backend, or the URLs of sandbox servers, separated by commas; see
    ``tools.sandbox.make_sandbox``."""
    step_timeout_s: float = 600.0
    """Seconds that a step may wait before it fails (EnvFailure, retryable). Many episodes share
    the sandbox, so a step may wait in a queue."""
    memory_mb: int = 512
    """Memory limit of one workspace in MiB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.files <= MAX_FILES:
            raise ValueError(f"files ({self.files}) must be from 1 to {MAX_FILES}")
        if self.memory_mb < 1:
            raise ValueError(f"memory_mb ({self.memory_mb}) must be >= 1")
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"faults ({kind!r}) must be all, or of {', '.join(KINDS)}")
        if self.feedback not in ("results", "blank"):
            raise ValueError(f"feedback ({self.feedback!r}) must be results or blank")
        if self.syntax not in SYNTAXES:
            known = ", ".join(SYNTAXES)
            raise ValueError(f"syntax ({self.syntax!r}) must be one of {known}")
        names = set(named_tools(self.tools))
        can_read = names & {"bash", "read"} or (self.show and self.files == 1)
        if not can_read or not names & {"bash", "edit", "fix"}:
            raise ValueError(
                f"tools ({self.tools}) must allow reading files (bash or read) and changing them "
                f"(bash, edit or fix)"
            )
        if "fix" in names and self.files > 1 and not names & {"bash", "edit"}:
            raise ValueError(f"tools ({self.tools}): fix changes main.py only; set files=1")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault."""
        if self.faults == "all":
            return KINDS if self.files > 1 else tuple(kind for kind in KINDS if kind != "import")
        return tuple(kind.strip() for kind in self.faults.split(","))


def blank(result: str) -> str:
    """A result with "?" in place of each letter and digit; its length and lines are the same."""
    return re.sub(r"[^\W_]", "?", result)


@dataclass(slots=True)
class SweMiniState:
    """An episode's state. The files are in the workspace."""

    task: SoftwareTask
    called: bool = False
    """Whether the agent has called a tool."""


class SweMiniEnv(ToolEnv[SoftwareTask, SweMiniState]):
    """Repositories with one fault; see the module's docstring for the protocol."""

    Options = SweMiniOptions
    card = Card(
        agent="finds and mends the fault in a small repository, with a shell and an editor",
        reward="1 if the hidden tests pass",
        needs="a sandbox",
    )
    success_score = "passed"
    other_services = ("workspaces", "collect", "sandbox")

    def __init__(self, options: SweMiniOptions, services: Mapping[str, Any] | None = None) -> None:
        tasks = software_tasks(options.split, options.seed, options.files, options.kinds)
        super().__init__(options, tasks, services, syntax=SYNTAXES[options.syntax])
        self.stop, self.continues = self.syntax.stop, self.syntax.continues
        rules = self.tool_rules
        if options.syntax == JSON_CALL.name:
            rules = listed([schema_of(tool) for tool in self.named_tools.values()])
        if options.instructions:
            self.system_prompt = "\n".join(filter(None, [INSTRUCTIONS, rules]))

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open one sandbox with the workspaces of all episodes, and the tools that act in them."""
        chosen = cast(SweMiniOptions, options)
        pool = pool_of(chosen.sandbox, memory_mb=chosen.memory_mb)
        made: dict[str, Tool] = make_tools(chosen.tools)
        made["collect"] = CollectTool(pool)
        async with AsyncExitStack() as stack:
            for tool in made.values():
                if isinstance(tool, WorkspaceTool):
                    tool.pool = pool
                stack.push_async_callback(tool.close)
                await tool.open()
            yield {**made, "workspaces": pool, "sandbox": pool.sandbox}

    def begin(self, task: SoftwareTask) -> str:
        """What the function must do, and the names of the files."""
        self.state = SweMiniState(task)
        chosen, lines = self._chosen, [task.program.sentence]
        if chosen.files == 1:
            lines[0] += f" It is in {MAIN}, and a test fails."
        else:
            lines[0] += f" A test fails. Files: {', '.join(task.modules)}, tests/test_main.py."
        if chosen.show:
            text = task.modules[MAIN].splitlines()
            lines += [f"{number}\t{line}" for number, line in enumerate(text, 1)]
        return "\n".join(lines)

    async def prepare_tools(self, episode: str) -> None:
        """Give the episode a workspace with the repository."""
        pool = await self.service("workspaces")
        await pool.start(episode, self.state.task.files)

    async def turn(self, action: Action) -> Reply:
        """Make the calls of a message, or grade the repository."""
        calls = self.syntax.calls(action)
        if not calls:
            rewards, scores = await self._grade()
            return finish(rewards, scores=scores)
        records, results = list[EnvToolCall](), list[tuple[str, str]]()
        for call in calls:
            result, record = await self.call(call)
            self.state.called |= call.error is None
            records.append(record)
            shown = blank(result.text) if self._chosen.feedback == "blank" else result.text
            results.append((call.tool, shown))
            if self.is_final(call) and result.error is None:
                rewards, scores = await self._grade()
                return finish(rewards, scores=scores, tool_calls=records)
        if self.turns_left == 1:
            rewards, scores = await self._grade()
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores, tool_calls=records)
        return go_on(self.put_back(results), tool_calls=records)

    def difficulty(self, task_index: int) -> float:
        """The difficulty, which grows with the number of modules."""
        return (self._chosen.files - 1) / (MAX_FILES - 1)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that reads the modules in turn, and mends the line that the words contradict."""
        chosen = self._chosen
        return GoldPolicy(
            [*self.named_tools], chosen.files, shown=chosen.show, tagged=chosen.syntax == TAGS.name
        )

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that finds the wrong line but often writes another wrong one."""
        chosen, tagged = self._chosen, self._chosen.syntax == TAGS.name
        return CarelessPolicy(
            [*self.named_tools], chosen.files, rng, shown=chosen.show, tagged=tagged
        )

    @property
    def _chosen(self) -> SweMiniOptions:
        return cast(SweMiniOptions, self.options)

    async def _grade(self) -> tuple[dict[str, float], dict[str, float]]:
        """The reward and the scores of the modules as they are now."""
        task = self.state.task
        modules: Mapping[str, str] = task.modules
        if self.state.called:
            tool = cast(Tool, await self.service("collect"))
            paths = {"paths": [*task.modules]}
            collected, _ = await self._call_session(Call("collect", paths, 0), tool)
            modules = collected.data or {}
        sandbox: AnySandbox = await self.service("sandbox")
        limits = replace(sandbox.limits, wall_s=GRADE_S)
        try:
            verdict: Verdict = await sandbox.grade(
                bundle(modules, task.program.name), task.hidden, ENTRY_POINT, limits=limits
            )
        except SandboxFailure as error:
            raise EnvFailure(f"{self.env_id}: {error}", retryable=error.retryable) from error
        share = verdict.num_passed / len(task.hidden)
        passed = float(verdict.passed)
        return {"hidden_tests": passed}, {"passed": passed, "hidden_passed": share}

r"""``math-v0``: problems whose answers are checked, with or without a tool.

The answer is what the last ``\boxed{...}`` of the agent's last action holds. With a tool an action
may hold a call instead: generation halts at its end, the result is put in its place, and the
message goes on. An action without a call ends the episode, whether it answers or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, cast

import numpy as np

from envs.env import EnvOptions, Snapshot, Tasks, TextEnv
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.loop import loop_thread
from envs.math.authors import BARE, TAGGED, CarelessAuthor, GoldAuthor, Layout
from envs.math.generated import LEVELS, TOPICS, GeneratedTasks
from envs.math.rows import row_tasks
from envs.math.task import MathTask
from envs.math.verifier import MathVerifier, Outcome, UnverifiableGold, VerifierFailure
from envs.rewards import Rubric, Transcript, make_rubric
from envs.rewards.mathematics import MATH_REWARDS
from envs.sessions import ToolSession
from tools.syntax import CALCULATOR, RE_TOOL, Call

GENERATED = "generated"
OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that stops in the middle."""
SYNTAXES = {"python": RE_TOOL, "calculator": CALCULATOR}
TOOL_RULES = {
    "python": "To run Python, write <code>, the code and </code>; what it prints stands after it.",
    "calculator": "To calculate, write <calculator> 2 * (3 + 4) </calculator>; the <result> stands "
    "after it.",
}


@dataclass(frozen=True, kw_only=True)
class MathOptions(EnvOptions):
    """Which problems, which tool, and what is rewarded."""

    tasks: str = GENERATED
    """"generated", or rows in the layout of GSM8K or MATH: a path to .jsonl, .jsonl.gz or
    .parquet, or a Hugging Face hub id."""
    topic: str = "mixed"
    """Generated problems: "arithmetic", "algebra", or "mixed" for one after the other."""
    level: int = 1
    """Generated problems: 1 (one-digit sums, ax + b = c), 2 (products, x on both sides) or 3
    (fractions, products of binomials)."""
    tool: str = "none"
    """"none"; "python", an interpreter that keeps its variables; or "calculator". A tool needs
    max_turns of 2 or more: each call takes a turn, and so does the answer."""
    reward: str = "accuracy"
    """"accuracy": 1 for a right answer; "r1-zero", "open-r1-tags", "open-rs": and something for the
    format; "orz": 1 if the box stands inside <answer>. See envs/rewards/mathematics.py."""
    rubric: str = ""
    """What is rewarded instead, as a sum of names: "accuracy + 0.1*think_answer"."""
    instructions: bool = True
    """Whether the rules stand in a system message; without it an agent must know them."""
    verify_s: float = 2.0
    """Seconds of processor time that the comparison of one answer may take."""
    sandbox: str = "auto"
    """The python tool's backend; see ``tools.sandbox.make_sandbox``."""
    wall_s: float = 5.0
    """Seconds that one call of the python tool may run."""
    memory_mb: int = 256
    """MiB that an interpreter may use."""
    max_sessions: int = 256
    """Interpreters open at once: episodes that have called the python tool."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (
            ("topic", (*TOPICS, "mixed")),
            ("level", LEVELS),
            ("tool", ("none", *SYNTAXES)),
            ("reward", tuple(MATH_REWARDS)),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} ({value!r}) must be one of {', '.join(map(str, known))}")
        if self.tool != "none" and self.max_turns < 2:
            raise ValueError(
                f"tool ({self.tool!r}) needs max_turns ({self.max_turns}) >= 2: a call takes a "
                f"turn, and so does the answer"
            )
        if self.rubric:
            make_rubric(self.rubric)
        if not 0.01 <= self.verify_s <= 3600:
            raise ValueError(f"verify_s ({self.verify_s}) must be from 0.01 to 3600")


@dataclass(slots=True)
class MathState:
    """An episode's state."""

    task: MathTask
    text: str = ""
    """The assistant's message so far, results included."""
    written: str = ""
    """The agent's words alone."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The arguments of the tool calls so far."""


class MathEnv(TextEnv[MathTask, MathState]):
    """Problems with answers that math-verify compares; see the module's docstring."""

    Options = MathOptions
    success_score = "right"

    def __init__(self, options: MathOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _tasks(options), services)
        self._session: ToolSession | None = None
        self._reward = MATH_REWARDS[options.reward]
        self._syntax = SYNTAXES.get(options.tool)
        self._rubric = _rubric(options.rubric or self._reward.rubric)
        self.reward_range = self._rubric.reward_range
        # The right format can be written without reading the question: so it is in the papers.
        self.reward_floor = self._rubric.reward_floor
        if self._syntax is not None:
            self.stop, self.continues = self._syntax.stop, self._syntax.continues
        if options.instructions:
            rules = [TOOL_RULES[options.tool]] if self._syntax is not None else []
            self.system_prompt = " ".join([*rules, self._reward.instructions])

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """The verifier, and the tool if there is one."""
        chosen = cast(MathOptions, options)
        async with AsyncExitStack() as stack:
            verifier = MathVerifier(cpu_s=chosen.verify_s)
            stack.callback(verifier.close)
            yield {"verifier": verifier, "tool": await _open_tool(chosen, stack)}

    # ---- the episode -----------------------------------------------------------------------

    def begin(self, task: MathTask) -> str | Awaitable[str]:
        """The problem."""
        self.state = MathState(task)
        return task.question if self._session is None else self._begin_again(task)

    async def _begin_again(self, task: MathTask) -> str:
        await self._end_session()
        return task.question

    def turn(self, action: Action) -> Reply | Awaitable[Reply]:
        """A call's result, or the end."""
        call = None if self._syntax is None else self._syntax.parse(action)
        if call is not None:
            return self._called(call, action)
        return self._answered(action)

    async def _called(self, call: Call, action: Action) -> Reply:
        if self.turns_left == 1:
            # Nobody could read the result any more.
            await self._end_session()
            rewards, scores = self._grade(action[: call.end], None, None, complete=False)
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        session = await self._open_session()
        result = await session.call(call.arguments)
        assert self._syntax is not None
        observation = self._syntax.wrap(result.text)
        self.state.calls.append(dict(call.arguments))
        self.state.written += action[: call.end]
        self.state.text += action[: call.end] + observation
        record = EnvToolCall.of(call.tool, call.arguments, result)
        return go_on(observation, tool_calls=[record])

    def _answered(self, action: Action) -> Reply | Awaitable[Reply]:
        """The end; at once, where that needs neither a process nor the end of a session."""
        finished = action.finish_reason not in OVER_LENGTH
        answer = self._reward.find_answer(action) if finished else None
        outcome = MathVerifier.quick(self.state.task.answer, answer) if answer else None
        if (answer and outcome is None) or self._session is not None:
            return self._verified(action, answer, outcome)
        return self._finished(action, answer, outcome)

    async def _verified(self, action: Action, answer: str | None, outcome: Outcome | None) -> Reply:
        await self._end_session()
        if answer and outcome is None:
            task = self.state.task
            verifier = cast(MathVerifier, await self.service("verifier"))
            try:
                outcome = await verifier.acheck(task.answer, answer)
            except UnverifiableGold as error:
                where = f"{task.where}: " if task.where else ""
                raise EnvFailure(f"{self._name}: {where}{error}", retryable=False) from error
            except VerifierFailure as error:
                raise EnvFailure(f"{self._name}: {error}", retryable=True) from error
        return self._finished(action, answer, outcome)

    def _finished(self, action: Action, answer: str | None, outcome: Outcome | None) -> Reply:
        complete = action.finish_reason not in OVER_LENGTH
        rewards, scores = self._grade(action, answer, outcome, complete=complete)
        return finish(rewards, scores=scores)

    def _grade(
        self, last: str, answer: str | None, outcome: Outcome | None, *, complete: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards and scores of the whole episode, of which ``last`` is the last words."""
        scores = {
            "right": float(outcome is Outcome.RIGHT),
            "answered": float(bool(answer)),
            "unverifiable": float(outcome is Outcome.UNVERIFIABLE),
        }
        state = self.state
        transcript = Transcript(
            question=state.task.question,
            text=state.text + last,
            written=state.written + last,
            answer=answer or None,
            golds=(state.task.answer,),
            correct=scores["right"],
            complete=complete,
        )
        return self._rubric(transcript), scores

    # ---- who can play ----------------------------------------------------------------------

    def gold_policy(self) -> Callable[[str], str]:
        """Generated problems: works them out, by the tool if there is one.

        Rows: their own gold answer, which no agent sees; nothing else is sure to be right.
        """
        if self._chosen.tasks == GENERATED:
            return GoldAuthor(self._layout, self._chosen.tool)
        rows = cast("list[MathTask]", self.tasks)
        answers = {task.question: task.answer for task in rows}
        return lambda question: self._layout.opening + self._layout.answer(answers[question])

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """Generated problems of level 1: an author that forgets steps and slips."""
        if self._chosen.tasks != GENERATED or self._chosen.level != 1:
            raise NotImplementedError("only generated problems of level 1 have an imperfect author")
        return CarelessAuthor(self._layout, self._chosen.tool, rng)

    @property
    def _layout(self) -> Layout:
        """The format that the reward asks for."""
        bare = self._chosen.reward == "accuracy" and not self._chosen.rubric
        return BARE if bare else TAGGED

    # ---- the tool's session ----------------------------------------------------------------

    async def _open_session(self) -> ToolSession:
        if self._session is None:
            tool = await self.service("tool")
            self._session = ToolSession(tool, self.options.step_timeout_s)
            # After a restore: what the interpreter knew is what it was told.
            for arguments in self.state.calls:
                await self._session.call(arguments)
        return self._session

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    def close(self) -> None:
        """As the base class's; the episode's interpreter ends as well."""
        if self._session is not None:
            loop_thread.run(self._end_session())
        super().close()

    async def aclose(self) -> None:
        """As :meth:`close`."""
        await self._end_session()
        await super().aclose()

    def restore(self, snapshot: Snapshot) -> None:
        """As the base class's; the next call first repeats the snapshot's calls, in order."""
        if self._session is not None:
            loop_thread.run(self._end_session())
        super().restore(snapshot)

    async def arestore(self, snapshot: Snapshot) -> None:
        """As :meth:`restore`."""
        await self._end_session()
        super().restore(snapshot)

    def fork(self, reseed: int | None = None) -> Self:
        """As the base class's, with a copy of the interpreter."""
        if self._session is None:
            return super().fork(reseed)
        return loop_thread.run(self.afork(reseed))

    async def afork(self, reseed: int | None = None) -> Self:
        """As :meth:`fork`."""
        twin = await super().afork(reseed)
        if self._session is not None:
            twin._session = await self._session.fork()
        return twin

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._session = None
        return twin

    @property
    def _chosen(self) -> MathOptions:
        return cast(MathOptions, self.options)


async def _open_tool(options: MathOptions, stack: AsyncExitStack) -> Any:
    """The chosen tool; the stack closes it."""
    import tools
    from tools.sandbox import Limits, make_sandbox

    if options.tool != "python":
        return None if options.tool == "none" else tools.make(options.tool)
    limits = Limits(wall_s=options.wall_s, memory_mb=options.memory_mb)
    sandbox = make_sandbox(options.sandbox, limits, max_sessions=options.max_sessions)
    return tools.make("python", sandbox=await stack.enter_async_context(sandbox))


def _tasks(options: MathOptions) -> Tasks[MathTask]:
    if options.tasks == GENERATED:
        return GeneratedTasks(options.split, options.seed, options.topic, options.level)
    return row_tasks(options.tasks, options.split)


@cache
def _rubric(text: str) -> Rubric:
    # Every episode makes an environment.
    return make_rubric(text)

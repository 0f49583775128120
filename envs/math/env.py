r"""``math-v0``: problems with verified answers, with or without tools.

The answer is the content of the last ``\boxed{...}`` in the agent's last action, or has the format
that a row's own prompt requires (:mod:`envs.math.answer_format`). With a tool, an action may hold a
call: generation halts at the call's end, the environment inserts the result, and the message
continues. With ``syntax="chat"``, a message may hold several calls in the format of the model's
chat template, and their results are tool messages. An action without a call ends the episode,
whether it contains an answer or not.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from envs.math.answer_format import asked_answer
from envs.math.choices import letter_of
from envs.math.generated import LEVELS, TOPICS, GeneratedTasks
from envs.math.rows import load_problems
from envs.math.scripted_policies import BARE, CALLS, TAGGED, CarelessPolicy, GoldPolicy, Layout
from envs.math.task import MathTask
from envs.math.verification.verifier import MathVerifier, Outcome, UnverifiableGold, VerifierFailure
from envs.options import Card
from envs.rewards import Rubric, Transcript, make_rubric
from envs.rewards.mathematics import MATH_REWARDS
from envs.tool_env import ToolEnv, ToolOptions, named_tools
from tools.chat_calls import CHAT
from tools.syntax import RE_TOOL, TAGS, Call, Syntax, split_reasoning

SYNTAXES = ("tags", "chat")
"""Text formats of calls."""
OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that was cut off."""
PYTHON_RULE = "To run Python, write <code>, the code and </code>; what it prints stands after it."


@dataclass(frozen=True, kw_only=True)
class MathOptions(ToolOptions, RowOptions):
    """Options of problems, tools and rewards."""

    topic: str = "mixed"
    """Topic of generated problems: "arithmetic", "algebra", or "mixed", which alternates."""
    level: int = 1
    """Level of generated problems: 1 (one-digit sums, ax + b = c), 2 (products, x on both sides)
    or 3 (fractions, products of binomials)."""
    reward: str = "accuracy"
    """ "accuracy": 1 for a right answer. "r1-zero", "open-r1-tags" and "open-rs": also a reward for
    the format. "orz": 1 if the box is inside <answer>. See envs/rewards/mathematics.py."""
    rubric: str = ""
    """A sum of named rewards that replaces ``reward``: "accuracy + 0.1*think_answer"."""
    syntax: str = "tags"
    """Text format of calls: "tags" around the code or the arguments, or "chat" for the format of
    the model's own chat template."""
    verify_s: float = 2.0
    """Seconds of processor time that the comparison of one answer may take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (
            ("topic", (*TOPICS, "mixed")),
            ("level", LEVELS),
            ("reward", tuple(MATH_REWARDS)),
            ("syntax", SYNTAXES),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} ({value!r}) must be one of {', '.join(map(str, known))}")
        if self.syntax == "chat" and not named_tools(self.tools):
            raise ValueError("syntax ('chat') needs tools: name some (tools='python')")
        if self.rubric:
            make_rubric(self.rubric)
        if not 0.01 <= self.verify_s <= 3600:
            raise ValueError(f"verify_s ({self.verify_s}) must be from 0.01 to 3600")


@dataclass(slots=True)
class MathState:
    """An episode's state."""

    task: MathTask
    text: str = ""
    """The assistant's message so far, including inserted results."""
    written: str = ""
    """The text that the agent itself wrote."""


class MathEnv(ToolEnv[MathTask, MathState]):
    """Mathematical problems; math-verify compares an answer with the gold answer.

    The module's docstring describes the format of answers and of tool calls.
    """

    Options = MathOptions
    card = Card(
        agent="solves a problem, with tools or without",
        turns="1, or more",
        reward="1 for a right answer",
        needs="a sandbox for the Python tool",
    )
    success_score = "right"
    other_services = ("verifier",)
    floor_waiver = "papers and rubrics pay their format, which can be written without reading"

    def __init__(self, options: MathOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, _tasks(options), services, syntax=_syntax(options))
        self._reward = MATH_REWARDS[options.reward]
        self._rubric = _rubric(options.rubric or self._reward.rubric)
        self.reward_range = self._rubric.reward_range
        self.reward_floor = self._rubric.reward_floor
        if self.named_tools:
            self.stop, self.continues = self.syntax.stop, self.syntax.continues
        of_rows = options.tasks != GENERATED
        self.system_prompt = self._instructions(of_rows and self.tasks[0].own_prompt)

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[MathTask] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(MathOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_problems(chosen.tasks, chosen.columns)

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the verifier and the named tools."""
        async with super().open_services(options) as opened:
            verifier = MathVerifier(cpu_s=cast(MathOptions, options).verify_s)
            try:
                yield {**opened, "verifier": verifier}
            finally:
                verifier.close()

    # ---- the episode -----------------------------------------------------------------------

    def begin(self, task: MathTask) -> str:
        """The problem."""
        self.system_prompt = self._instructions(task.own_prompt)
        self.state = MathState(task)
        return task.question

    def turn(self, action: Action) -> Reply | Awaitable[Reply]:
        """Reply with the results of calls, or end the episode."""
        calls = self.syntax.calls(action)
        return self._called(calls, action) if calls else self._answered(action)

    async def _called(self, calls: Sequence[Call], action: Action) -> Reply:
        said = action[: calls[-1].end]
        records, results = list[EnvToolCall](), list[tuple[str, str]]()
        for call in calls:
            if self.turns_left == 1 and not self.is_final(call):
                continue
            result, record = await self.call(call)
            records.append(record)
            results.append((call.tool, result.text))
            if self.is_final(call) and result.error is None:
                end = self._end(Action(said), str(result.data), records)
                return await end if inspect.isawaitable(end) else end
        if self.turns_left == 1:
            # The model has no turn left to read the results.
            rewards, scores = self._grade(said, None, None, complete=False)
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores, tool_calls=records)
        observation = self.put_back(results)
        self.state.written += said
        self.state.text += said + observation
        return go_on(observation, tool_calls=records)

    def _answered(self, action: Action) -> Reply | Awaitable[Reply]:
        """The reply that ends the episode: awaitable if a process must compare the answer."""
        finished = action.finish_reason not in OVER_LENGTH
        before = self.state.text if self.continues else ""
        content = split_reasoning(action, before)[1]
        return self._end(action, self._answer(content) if finished else None)

    def _answer(self, text: str) -> str | None:
        task, answer = self.state.task, self._reward.find_answer(text)
        if task.own_prompt and answer is None:
            answer = asked_answer(task.question, text)
        return letter_of(answer, task.options) if answer else answer

    def _end(
        self, action: Action, answer: str | None, records: Sequence[EnvToolCall] = ()
    ) -> Reply | Awaitable[Reply]:
        """The reply that ends the episode with this answer, or without an answer.

        ``records`` are the records of the last turn's calls.
        """
        outcome = MathVerifier.quick(self.state.task.answer, answer) if answer else None
        if answer and outcome is None:
            return self._verified(action, answer, records)
        return self._finished(action, answer, outcome, records)

    async def _verified(self, action: Action, answer: str, records: Sequence[EnvToolCall]) -> Reply:
        task = self.state.task
        verifier = cast(MathVerifier, await self.service("verifier"))
        try:
            outcome = await verifier.acheck(task.answer, answer)
        except UnverifiableGold as error:
            where = f"{task.where}: " if task.where else ""
            raise EnvFailure(f"{self._name}: {where}{error}", retryable=False) from error
        except VerifierFailure as error:
            raise EnvFailure(f"{self._name}: {error}", retryable=True) from error
        return self._finished(action, answer, outcome, records)

    def _finished(
        self,
        action: Action,
        answer: str | None,
        outcome: Outcome | None,
        records: Sequence[EnvToolCall],
    ) -> Reply:
        complete = action.finish_reason not in OVER_LENGTH
        rewards, scores = self._grade(action, answer, outcome, complete=complete)
        return finish(rewards, scores=scores, tool_calls=records)

    def _grade(
        self, last: str, answer: str | None, outcome: Outcome | None, *, complete: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards and scores of an episode whose last action is ``last``."""
        scores = {
            "right": float(outcome is Outcome.RIGHT),
            "answered": float(bool(answer)),
            "unverifiable": float(outcome is Outcome.UNVERIFIABLE),
        }
        state = self.state
        transcript = Transcript(
            question=state.task.question,
            # In the chat format, the last message is the answer.
            text=state.text + last if self.syntax.form != "chat" else last,
            written=state.written + last,
            answer=answer or None,
            golds=(state.task.answer,),
            correct=scores["right"],
            complete=complete,
        )
        return self._rubric(transcript), scores

    # ---- scripted policies -----------------------------------------------------------------

    def difficulty(self, task_index: int) -> float:
        """The difficulty of a generated problem, which grows with its level."""
        if self._chosen.tasks != GENERATED:
            raise NotImplementedError("rows do not say how hard they are")
        return (self._chosen.level - 1) / (len(LEVELS) - 1)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that answers every problem.

        For generated problems it solves them, with the tool if there is one. For rows it gives the
        row's gold answer, which no agent sees.
        """
        if self._chosen.tasks == GENERATED:
            return GoldPolicy(self._layout, self._scripted_tool, chat=self._chat)
        rows = cast("list[MathTask]", self.tasks)
        answers = {task.question: task.answer for task in rows}
        return lambda question: self._layout.opening + self._layout.answer(answers[question])

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that forgets steps and miscalculates, for generated problems of level 1."""
        if self._chosen.tasks != GENERATED or self._chosen.level != 1:
            raise NotImplementedError("only generated problems of level 1 have a demonstrator")
        return CarelessPolicy(self._layout, self._scripted_tool, rng, chat=self._chat)

    def _instructions(self, own_prompt: bool) -> str | None:
        """The system prompt: the rules of the tools, and the answer format.

        The answer format is omitted if the task's own prompt contains it.
        """
        if not self._chosen.instructions:
            return None
        python = PYTHON_RULE if "python" in self.named_tools and not self._chat else ""
        answer = "" if own_prompt else self._reward.instructions
        return " ".join(filter(None, [python, self.tool_rules, answer])) or None

    @property
    def _layout(self) -> Layout:
        """The layout of scripted solutions, which the reward determines."""
        bare = self._chosen.reward == "accuracy" and not self._chosen.rubric
        return BARE if bare else TAGGED

    @property
    def _scripted_tool(self) -> str:
        """The tool that the scripted policies use, or "none"."""
        return next((name for name in self.named_tools if name in CALLS), "none")

    @property
    def _chat(self) -> bool:
        return self._chosen.syntax == "chat"

    @property
    def _chosen(self) -> MathOptions:
        return cast(MathOptions, self.options)


def _syntax(options: MathOptions) -> Syntax:
    """The syntax of calls: that of the chat template, or tags.

    If the Python interpreter is among the tools, the tags are those of ReTool.
    """
    if options.syntax == CHAT.name:
        return CHAT
    return RE_TOOL if "python" in named_tools(options.tools) else TAGS


def _tasks(options: MathOptions) -> Tasks[MathTask]:
    data = MathEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return GeneratedTasks(options.split, options.seed, options.topic, options.level)


@cache
def _rubric(text: str) -> Rubric:
    # Cached, because every episode makes an environment.
    return make_rubric(text)

"""``reference-qa-v0``: free answers, judged against an expert's reference answer.

The judge reads the last line of the action and decides whether it agrees with the reference. The
default judge is a rule that compares words, so the default settings need no network.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, EnvFailure, Reply, finish
from envs.options import Card
from envs.reference.judges import Judgement, ask, final_step, rule_judge
from envs.reference.reports import CarelessReader, ReportTasks, read
from envs.reference.rows import load_questions
from envs.reference.task import ReferenceTask
from tools.limits import CallLimits
from tools.tool import ToolFailure

RULE = "rule"
INSTRUCTIONS = (
    "Think first if you like. Write your answer on the last line, and nothing else there."
)
OVER_LENGTH = ("length", "context_full")
"""Finish reasons of an action that was cut off."""
SOFT_FLOOR = {GENERATED: 0.1, "rows": 0.3}
"""Reward floors of the soft reward, by kind of task. An answer that repeats the question earns up
to this floor, because questions share words with their reference answers."""


@dataclass(frozen=True, kw_only=True)
class ReferenceQAOptions(RowOptions):
    """Options of questions, the judge and the reward."""

    sentences: int = 3
    """Number of sentences per generated report, from 1 to 12."""
    reward: str = "binary"
    """ "binary": 1 if the judge accepts the answer. "soft": the judge's probability that it is
    right."""
    judge: str = RULE
    """ "rule" for a rule that compares words, or the URL of an OpenAI-compatible API:
    http://host:port/v1."""
    judge_model: str = ""
    """The judge's name in the API."""
    judge_key: str = ""
    """Name of the environment variable that holds the API's key; empty if the API needs none."""
    judge_timeout_s: float = 60.0
    """Seconds that one request to the judge may take."""
    judge_retries: int = 3
    """Number of further attempts after a retryable failure."""
    judge_concurrent: int = 64
    """Maximum number of concurrent requests."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""
    step_timeout_s: float = 600.0
    """Seconds that a step may wait before it fails (EnvFailure, retryable). They cover all
    requests and the wait in the queue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.sentences <= 12:
            raise ValueError(f"sentences ({self.sentences}) must be from 1 to 12")
        if self.reward not in ("binary", "soft"):
            raise ValueError(f"reward ({self.reward!r}) must be one of binary, soft")
        named = self.judge.startswith(("http://", "https://"))
        if not named and self.judge != RULE:
            raise ValueError(f"judge ({self.judge!r}) must be 'rule' or begin with http://")
        if named and not self.judge_model:
            raise ValueError(f"judge ({self.judge}) needs judge_model, its name there")
        if self.judge_key and self.judge_key not in os.environ:
            raise ValueError(
                f"judge_key ({self.judge_key!r}) names no environment variable that is set: set "
                f"it, or leave judge_key empty"
            )
        self.limits()

    def limits(self) -> CallLimits:
        """The limits of one judgement.

        Raises:
            ValueError: a number is out of range.
        """
        try:
            return CallLimits(
                timeout_s=self.judge_timeout_s,
                retries=self.judge_retries,
                max_concurrent=self.judge_concurrent,
            )
        except ValueError as error:
            raise ValueError(f"a judge's {error}") from error


class ReferenceQAEnv(TextEnv[ReferenceTask, ReferenceTask]):
    """Questions with free answers, judged against a reference; see the module's docstring."""

    Options = ReferenceQAOptions
    card = Card(
        agent="answers a question in its own words, judged against an expert's answer",
        turns="1",
        reward="1 if the judge accepts the answer; or the judge's probability",
        needs="a judge model, or none: a rule compares words",
    )
    success_score = "correct"

    def __init__(
        self, options: ReferenceQAOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(options, _tasks(options), services)
        if options.reward == "soft":
            self.reward_floor = SOFT_FLOOR[options.tasks if options.tasks == GENERATED else "rows"]
        self.system_prompt = INSTRUCTIONS if options.instructions else None

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[ReferenceTask] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(ReferenceQAOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_questions(chosen.tasks, chosen.columns)

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the judge."""
        chosen = cast(ReferenceQAOptions, options)
        if chosen.judge == RULE:
            yield {"judge": rule_judge}
            return
        from envs.reference.endpoint import EndpointJudge  # With it comes an HTTP client.

        judge = EndpointJudge(
            chosen.judge,
            chosen.judge_model,
            key=os.environ[chosen.judge_key] if chosen.judge_key else "",
            soft=chosen.reward == "soft",
            limits=chosen.limits(),
        )
        async with judge:
            yield {"judge": judge}

    def begin(self, task: ReferenceTask) -> str:
        """The question."""
        self.state = task
        return task.question

    async def turn(self, action: Action) -> Reply:
        """Judge the last line and end the episode."""
        answer = final_step(action.content) if action.finish_reason not in OVER_LENGTH else ""
        # An empty answer needs no judge.
        judgement = await self._judged(answer) if answer else Judgement(False)
        earned = judgement.soft if self._chosen.reward == "soft" else judgement.binary
        scores = {
            "correct": judgement.binary,
            "probability": judgement.soft,
            "answered": float(bool(answer)),
        }
        return finish({"judge": earned}, scores=scores)

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that answers every question.

        For generated reports it reads the report. For rows it gives the row's reference answer,
        which no agent sees.
        """
        if self._chosen.tasks == GENERATED:
            return read
        return lambda _: " ".join(self.state.reference.split())

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that picks wrong sentences or half answers. Rows have no such policy."""
        if self._chosen.tasks != GENERATED:
            raise NotImplementedError("rows have no imperfect author")
        return CarelessReader(rng)

    @property
    def _chosen(self) -> ReferenceQAOptions:
        return cast(ReferenceQAOptions, self.options)

    async def _judged(self, answer: str) -> Judgement:
        judge = await self.service("judge")
        try:
            return await ask(judge, self.state.question, self.state.reference, answer)
        except ToolFailure as error:
            raise EnvFailure(f"{self._name}: {error}", retryable=error.retryable) from error


def _tasks(options: ReferenceQAOptions) -> Tasks[ReferenceTask]:
    data = ReferenceQAEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return ReportTasks(options.split, options.seed, options.sentences)

"""``code-sandbox-v0``: write a function, read the results of the public tests, repair the function.

Each turn's program runs on the public tests. If it passes them, or no turn is left, the hidden
tests grade the program and the episode ends. Otherwise the agent reads the first failed public test
and may try again. With ``max_turns=1``, the environment is a contextual bandit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from envs.code.crosscheck import CrossCheck, can_cross_check, cross_check
from envs.code.feedback import blank, feedback
from envs.code.generated import GeneratedTasks
from envs.code.grader import CachedGrader
from envs.code.rows import SITE_PACKAGES, check_packages, load_tasks
from envs.code.scripted_policies import GoldPolicy, SloppyPolicy
from envs.code.task import CodeTask, extract_program
from envs.datasets.options import GENERATED, RowOptions
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, Tasks, TextEnv
from envs.episode import Action, EnvFailure, Reply, finish, go_on
from envs.options import Card
from tools.sandbox import Limits, Outcome, OutcomeKind, SandboxFailure, Status, Test, Verdict

if TYPE_CHECKING:
    from tools.sandbox import AnySandbox


@dataclass(frozen=True, kw_only=True)
class CodeSandboxOptions(RowOptions):
    """Options of tasks, feedback, rewards and execution."""

    hide: str = "none"
    """For generated tasks. "constant" withholds one number from the description (in tasks with at
    most one filter), so that the first attempt must guess it and feedback reveals it. "none"
    withholds nothing."""
    feedback: str = "tests"
    """ "tests" shows the first failed public test. "blank" shows the same sentence without its
    values, to measure how much feedback helps."""
    hidden_tests: str = "all"
    """How the hidden tests are rewarded. "all": 1 if all tests pass, public and hidden, else 0.
    "fraction": the share of passed tests among the hidden tests that are not public."""
    cross_check: int = 0
    """Number of random small inputs on which a program must also agree with the task's reference
    solution. After a mismatch, the program's tests earn 0."""
    format_reward: float = 0.0
    """Reward at the end if the last program loads and has an output for a hidden test."""
    turn_cost: float = 0.0
    """Cost of each turn after the first. With hide=constant the second turn is free as well,
    because the first attempt must guess."""
    sandbox: str = "auto"
    """The sandbox's backend, or the URLs of sandbox servers, separated by commas; see
    ``tools.sandbox.make_sandbox``."""
    step_timeout_s: float = 600.0
    """Seconds that a step may wait before it fails (EnvFailure, retryable). Many episodes share
    the sandbox, so a step may wait in a queue. ``wall_s`` limits the program itself."""
    wall_s: float = 5.0
    """Seconds that one program may run. They cover all tests together, or each single test with
    ``fresh_process``."""
    memory_mb: int = 256
    """Memory limit of one program in MiB."""
    fresh_process: bool = False
    """Run each test in a new process, so that calls share no state. A grade then costs about as
    much as one run for each test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (
            ("hide", ("none", "constant")),
            ("feedback", ("tests", "blank")),
            ("hidden_tests", ("all", "fraction")),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} ({value!r}) must be one of {', '.join(known)}")
        for name in ("format_reward", "turn_cost"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be >= 0")
        if not 0 <= self.cross_check <= 1000:
            raise ValueError(f"cross_check ({self.cross_check}) must be from 0 to 1000")
        self.limits()
        if self.hide == "constant" and self.tasks != GENERATED:
            raise ValueError(
                f"hide ('constant') is for generated tasks: with tasks ({self.tasks!r}) leave it "
                f"at 'none'"
            )
        if self.hide == "constant" and self.max_turns < 2:
            raise ValueError(
                f"hide ('constant') needs max_turns ({self.max_turns}) >= 2: the first attempt "
                f"has to guess"
            )

    @property
    def free_turns(self) -> int:
        """Number of turns without ``turn_cost``."""
        return 2 if self.hide == "constant" else 1

    def limits(self) -> Limits:
        """The limits of one program.

        Raises:
            ValueError: a limit is outside its range.
        """
        try:
            return Limits(wall_s=self.wall_s, memory_mb=self.memory_mb)
        except ValueError as error:
            # The limits' fields have the names of this class's options.
            raise ValueError(str(error).removeprefix("limits.")) from error


@dataclass(slots=True)
class CodeState:
    """An episode's state."""

    task: CodeTask


class CodeSandboxEnv(TextEnv[CodeTask, CodeState]):
    """Programs graded by hidden tests; see the module's docstring for the protocol."""

    Options = CodeSandboxOptions
    card = Card(
        agent="writes a function, reads the results of public tests, repairs it",
        turns="1, or more",
        reward="1 if all tests pass, public and hidden",
        needs="a sandbox",
    )
    success_score = "passed"

    def __init__(
        self, options: CodeSandboxOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(options, _tasks(options), services)
        if options.cross_check and options.tasks != GENERATED:
            _check_comparable(options.tasks, cast(list[CodeTask], self.tasks))
        self.reward_range = (
            -options.turn_cost * (options.max_turns - options.free_turns),
            1.0 + options.format_reward,
        )
        # HumanEval's prompt, repeated as the answer, is a function that returns None.
        self.reward_floor = 0.0 if options.tasks == GENERATED else options.format_reward

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[CodeTask] | None:
        """The data set of ``tasks``, or None if tasks are generated."""
        chosen = cast(CodeSandboxOptions, options)
        if chosen.tasks == GENERATED:
            return None
        return load_tasks(chosen.tasks, chosen.columns)

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open one sandbox with a cache of verdicts."""
        # Imported here: it takes as long to import as the rest of a command's help.
        from tools.sandbox import make_sandbox

        chosen = cast(CodeSandboxOptions, options)
        async with make_sandbox(chosen.sandbox, chosen.limits()) as sandbox:
            if (data := cls.dataset(options)) is not None:
                await _check_packages(sandbox, data)
            grader = CachedGrader(sandbox, fresh_process=chosen.fresh_process)
            try:
                yield {"sandbox": grader}
            finally:
                await grader.close()

    def begin(self, task: CodeTask) -> str:
        """The task's description."""
        self.state = CodeState(task)
        return task.prompt

    async def turn(self, action: Action) -> Reply:
        """Run the program; reply with the first failed public test, or end the episode."""
        task, source = self.state.task, self._source(action.content)
        if self.turns_left == 1:
            verdict = await self._grade(source, task.public + task.hidden)
            count = len(task.public)
            outcomes = verdict.outcomes
            return await self._finished(source, verdict.passed, outcomes[:count], outcomes[count:])
        # Hidden tests run in a process of their own: a program could store their arguments and
        # return them in a public test, whose result the agent reads.
        public = await self._grade(source, task.public)
        if public.passed:
            hidden = await self._grade(source, task.hidden)
            return await self._finished(source, hidden.passed, public.outcomes, hidden.outcomes)
        observation = blank(task) if self._chosen.feedback == "blank" else feedback(task, public)
        scores = {"public_passed": _share(public.outcomes), "passed": 0.0}
        return go_on(observation, {"turn_cost": self._turn_cost()}, scores=scores)

    def difficulty(self, task_index: int) -> float:
        """The difficulty, which grows with a generated task's number of filters and maps.

        One filter or map has difficulty 0; four have difficulty 1.
        """
        if not isinstance(self.tasks, GeneratedTasks):
            raise NotImplementedError("rows do not say how hard they are")
        recipe = self.tasks.draw(task_index).recipe
        return (len(recipe.filters) + len(recipe.maps) - 1) / 3

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that solves every task.

        For generated tasks it reads the description and, where necessary, the feedback. For rows it
        gives the row's reference solution, which no agent sees.
        """
        if self._chosen.tasks == GENERATED:
            return GoldPolicy()
        return lambda _: _reference(self.state.task)

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that omits second filters and maps, and guesses withheld constants.

        Rows have no such policy.
        """
        if self._chosen.tasks != GENERATED:
            raise NotImplementedError("rows have no imperfect author")
        return SloppyPolicy(rng)

    @property
    def _chosen(self) -> CodeSandboxOptions:
        return cast(CodeSandboxOptions, self.options)

    def _source(self, action: str) -> str:
        return self.state.task.source(extract_program(action))

    async def _grade(self, source: str, tests: tuple[Test, ...]) -> Verdict:
        sandbox = await self.service("sandbox")
        try:
            verdict = await sandbox.grade(source, tests, self.state.task.entry_point or None)
        except SandboxFailure as error:
            raise EnvFailure(f"{self.env_id}: {error}", retryable=error.retryable) from error
        return cast(Verdict, verdict)

    async def _cross_check(self, source: str) -> CrossCheck:
        count, task = self._chosen.cross_check, self.state.task
        if not count or not can_cross_check(task):
            return CrossCheck(0, 0)
        sandbox = await self.service("sandbox")
        try:
            return await cross_check(sandbox, task, source, count)
        except SandboxFailure as error:
            raise EnvFailure(f"{self.env_id}: {error}", retryable=True) from error

    def _turn_cost(self) -> float:
        turn = self.options.max_turns - self.turns_left + 1
        return 0.0 if turn <= self._chosen.free_turns else 0.0 - self._chosen.turn_cost

    async def _finished(
        self, source: str, passed: bool, public: Sequence[Outcome], hidden: Sequence[Outcome]
    ) -> Reply:
        """The reply that ends the episode, from the outcomes of the last program's tests."""
        options = self._chosen
        share = _share(_unseen(self.state.task, hidden))
        checked = await self._cross_check(source) if share > 0 else CrossCheck(0, 0)
        passed = passed and checked.agreed
        paid = float(passed) if options.hidden_tests == "all" else share * checked.agreed
        answered = any(o.kind in (OutcomeKind.PASSED, OutcomeKind.WRONG) for o in hidden)
        rewards = {
            "hidden_tests": paid,
            "format": options.format_reward * answered,
            "turn_cost": self._turn_cost(),
        }
        scores = {
            "public_passed": _share(public),
            "hidden_passed": share,
            "passed": float(passed),
        }
        if options.cross_check:
            scores["cross_checked"] = float(checked.num_compared)
            scores["cross_equal"] = float(checked.num_equal)
        return finish(rewards, scores=scores)


def _tasks(options: CodeSandboxOptions) -> Tasks[CodeTask]:
    data = CodeSandboxEnv.dataset(options)
    if data is not None:
        return data.split(options.split)
    return GeneratedTasks(options.split, options.seed, withhold=options.hide == "constant")


async def _check_packages(sandbox: AnySandbox, data: Dataset[CodeTask]) -> None:
    """Check that the sandbox has the packages that tests import.

    Raises:
        MissingPackages: a package is missing.
    """
    found = set[str]()
    for name in frozenset[str]().union(*(task.packages for task in data.tasks)):
        if (await sandbox.run(f"{SITE_PACKAGES}import {name}")).status is Status.OK:
            found.add(name)
    check_packages(data.tasks, data.source, found.__contains__)


def _check_comparable(source: str, tasks: Sequence[CodeTask]) -> None:
    """Check that at least one task can be cross-checked.

    Raises:
        ValueError: no task can be cross-checked.
    """
    if not any(map(can_cross_check, tasks)):
        raise ValueError(
            f"cross_check: no task of {source} has both a reference solution and a test that "
            f"calls a function with plain values: set it to 0"
        )


def _unseen(task: CodeTask, hidden: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of hidden tests that are not public; all outcomes if every test is public."""
    pairs = zip(task.hidden, hidden, strict=True)
    return [outcome for test, outcome in pairs if test not in task.public] or hidden


def _share(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.passed for outcome in outcomes) / len(outcomes)


def _reference(task: CodeTask) -> str:
    if task.reference is None:
        raise ValueError("this row has no reference solution for a gold policy to write")
    return task.reference

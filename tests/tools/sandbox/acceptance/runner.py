"""Runs cases in one sandbox, several at a time, and reports the faults of each."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence

from processes import called

from tests.tools.sandbox.acceptance.case import (
    Case,
    ForgedGrade,
    Forgery,
    HonestSubmission,
    Program,
    shown,
)
from tests.tools.sandbox.acceptance.world import CANARY, World
from tools.sandbox import AssertTest, CallTest, Limits, RunResult, Sandbox, Verdict

AT_ONCE = 6
_SLACK_S = 6.0
"""Seconds that a run may take beyond its limit on a busy machine."""
CALLS = tuple(CallTest((x,), x * x + 7) for x in (3, 11, 2))
# Without a literal: the host would make a call compared with a literal itself.
ASSERTS = tuple(AssertTest(f"assert f({x}) == {x} * {x} + 7") for x in (3, 11, 2))
_numbers = itertools.count()


class Runner:
    """Runs cases in one sandbox and one world."""

    def __init__(self, sandbox: Sandbox, world: World) -> None:
        self.sandbox = sandbox
        self.world = world
        self.host = world.targets(sandbox.isolation)

    async def run(self, cases: Sequence[Case]) -> dict[str, str]:
        """Case -> its faults; empty if there are none."""
        found: dict[str, str] = {}
        permits = asyncio.Semaphore(AT_ONCE)
        # If all processes of a user count together, cases that exhaust them run last and alone.
        shared = self.sandbox.isolation != "namespaces" and os.getuid() != 0
        alone = [c for c in cases if shared and isinstance(c, Program) and c.crowds]

        async def one(case: Case) -> None:
            async with permits:
                found[case_id(case)] = await self._fault_of(case)

        await asyncio.gather(*(one(case) for case in cases if case not in alone))
        for case in alone:
            await one(case)
        return found

    async def _fault_of(self, case: Case) -> str:
        try:
            if isinstance(case, Program):
                faults = await self._program(case)
            elif isinstance(case, ForgedGrade):
                faults = await self._forged_grade(case)
            else:
                faults = await self._submission(case)
        except Exception as error:
            faults = [f"the sandbox raised {type(error).__name__}: {error}"]
        faults += self.world.changes()
        return "; ".join(faults)

    async def _program(self, case: Program) -> list[str]:
        mark = f"tw-{os.getpid() % 100_000}-{next(_numbers)}"
        started = time.monotonic()
        result = await self.sandbox.run(
            case.text(mark, self.host), stdin=case.stdin, files=case.files, limits=case.limits
        )
        faults = _late(started, case.limits)
        faults += [f"process {pid} is left" for pid in called(mark)]
        faults += _leaked(result)
        if result.status not in case.statuses:
            faults.append(f"status {result.status}, not one of {'/'.join(case.statuses)}")
        if not shown(case.shows, result.stdout):
            faults.append(f"no {case.shows!r} in the output")
        if faults:
            faults.append(f"{result.stdout[:500]!r} {result.stderr[-700:]!r} {result.detail}")
        if case.follow_up is not None:
            source, printed = case.follow_up
            for _ in range(3):
                after = await self.sandbox.run(source)
                if after.stdout != printed:
                    faults.append(f"then: {after.stdout!r} {after.stderr[-300:]!r}")
        return faults

    async def _submission(self, case: Forgery | HonestSubmission) -> list[str]:
        faults = []
        honest = isinstance(case, HonestSubmission)
        limits = Limits(wall_s=20.0) if honest else case.limits
        for tests in (CALLS, ASSERTS):
            started = time.monotonic()
            verdict = await self.sandbox.grade(case.source, tests, "f", limits=limits)
            faults += _late(started, limits)
            if honest and not verdict.passed:
                faults.append(f"an honest submission fails: {verdict}")
            if not honest and (verdict.passed or verdict.num_passed):
                faults.append(f"{verdict.num_passed} tests pass: {verdict}")
            faults += _unusable(verdict)
        return faults

    async def _forged_grade(self, case: ForgedGrade) -> list[str]:
        verdict = await self.sandbox.grade(
            case.source, case.tests, case.entry_point, limits=case.limits
        )
        faults = _unusable(verdict)
        if verdict.passed or verdict.num_passed:
            faults.append(f"{verdict.num_passed} tests pass: {verdict}")
        return faults


def case_id(case: Case) -> str:
    """The case's words, with what it is where they do not say so."""
    if isinstance(case, Forgery):
        return f"never graded right: {case.expectation}"
    if isinstance(case, ForgedGrade):
        return f"never graded right, by its own tests: {case.expectation}"
    if isinstance(case, HonestSubmission):
        return f"graded right: {case.expectation}"
    return case.expectation


def _late(started: float, limits: Limits) -> list[str]:
    taken = time.monotonic() - started
    return [f"took {taken:.1f} s"] if taken > limits.wall_s + _SLACK_S else []


def _leaked(result: RunResult) -> list[str]:
    output = result.stdout + result.stderr
    faults = []
    if "ESCAPED" in result.stdout:
        faults.append("it escaped")
    if CANARY in output:
        faults.append("it knows the secret")
    if any(text in output for text in ("tools.sandbox", "tools/sandbox", "sandbox set-up")):
        faults.append("its errors show the sandbox's own lines")
    return faults


def _unusable(verdict: Verdict) -> list[str]:
    """A submission's messages must be text that can be encoded."""
    texts = [verdict.detail, verdict.stdout]
    for outcome in verdict.outcomes:
        texts += [outcome.message, outcome.error_type]
    shows: Callable[[str], bytes] = str.encode
    try:
        for text in texts:
            shows(text)
    except UnicodeEncodeError:
        return ["the verdict has text that cannot be encoded"]
    return []

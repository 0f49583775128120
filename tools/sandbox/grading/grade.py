"""Grades a submission: the host calls its functions, compares their answers and decides.

No line of a submission runs in this process. The submission's process, the candidate, returns
values and never verdicts. It holds no expected value, no test and no trusted channel. The host
compares a forged answer like any other answer.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tools.sandbox.grading.candidate import (
    Candidate,
    CandidateFault,
    Conversation,
    ended,
    printable,
)
from tools.sandbox.grading.cases import RULES, AssertTest, CallTest, StdioTest, Test
from tools.sandbox.grading.compare import equal_by, same_output
from tools.sandbox.grading.literal import Call, call_of
from tools.sandbox.host.executor import Executor
from tools.sandbox.host.job import Request
from tools.sandbox.host.reading import MemoryBudget, num_lists, size_of
from tools.sandbox.host.zygote import LostError
from tools.sandbox.inside.codec import MAX_SENT, CodecError, encode, pack
from tools.sandbox.limits import Limits
from tools.sandbox.results import Outcome, OutcomeKind, Status, Verdict

_NOT_RUN = Outcome(OutcomeKind.NOT_RUN)
_STDOUT_KEPT = 4000
_KINDS = (CallTest, AssertTest, StdioTest)
"""The kinds of tests, in the order in which they run."""


@dataclass(frozen=True)
class Submission:
    """A program to grade, and the options with which it is graded."""

    source: str
    entry_point: str | None
    limits: Limits
    stop_at_first_failure: bool
    fresh_process: bool = False
    """Whether each test runs in its own process."""
    budget: MemoryBudget = field(default_factory=MemoryBudget)


class _Sheet:
    """The outcomes so far, and the reason if the submission failed as a whole."""

    def __init__(self, submission: Submission, num_tests: int) -> None:
        self.outcomes = [_NOT_RUN] * num_tests
        self.detail = ""
        self.loads = True
        self.end: Outcome | None = None
        """The outcome of the process if the process failed after its last answer, else None."""
        self.stdout = ""
        self._stop = submission.stop_at_first_failure

    def fill(self, index: int, outcome: Outcome) -> bool:
        """Record the outcome of a test. Returns whether further tests should run."""
        self.outcomes[index] = outcome
        return outcome.passed or not self._stop

    @property
    def open(self) -> bool:
        """Whether further tests should run."""
        return not self._stop or all(
            o.passed or o.kind is OutcomeKind.NOT_RUN for o in self.outcomes
        )


async def grade(executor: Executor, submission: Submission, tests: Sequence[Test]) -> Verdict:
    """Grade a submission; ``Sandbox.grade`` describes the rules and errors."""
    check(submission, tests)
    started = time.monotonic()
    async with executor.permits:
        if submission.fresh_process and len(tests) > 1:
            sheet = await _grade_apart(executor, submission, tests)
        else:
            sheet = await _tried_twice(executor, submission, tests)
    executor.tally.grades += 1
    passed = bool(tests) and not sheet.detail and all(o.passed for o in sheet.outcomes)
    return Verdict(
        passed=passed,
        outcomes=tuple(sheet.outcomes),
        wall_s=time.monotonic() - started,
        isolation=executor.isolation,
        backend=executor.backend,
        limits_enforced_by=executor.limits_enforced_by,
        detail=sheet.detail if tests else "no tests",
        stdout=sheet.stdout,
    )


def check(submission: Submission, tests: Sequence[Test]) -> None:
    """Check that the tests can run.

    Raises:
        ValueError: a test cannot run; see ``Sandbox.grade``.
    """
    for index, test in enumerate(tests):
        if not isinstance(test, CallTest | StdioTest | AssertTest):
            raise ValueError(
                f"tests[{index}] ({type(test).__name__}) must be a CallTest, a StdioTest or an "
                "AssertTest"
            )
        if isinstance(test, CallTest) and not submission.entry_point:
            raise ValueError(f"tests[{index}] is a CallTest: name its function by entry_point=")
        if not isinstance(test, AssertTest) and test.rules not in RULES:
            raise ValueError(
                f"tests[{index}].rules ({test.rules!r}) must be one of {', '.join(RULES)}"
            )
        try:
            match test:
                case CallTest(args, expected, kwargs, tolerance):
                    _check_call(index, kwargs, tolerance)
                    name = submission.entry_point
                    pack(["call", len(tests), name, encode(args), encode(dict(kwargs))], MAX_SENT)
                    num_lists(pack(["value", encode(expected), len(tests)]))
                case StdioTest(stdin):
                    stdin.encode()
                case AssertTest(code, setup):
                    pack(["test", 0, setup, code, submission.entry_point], MAX_SENT)
        except (CodecError, UnicodeEncodeError) as error:
            raise ValueError(f"tests[{index}]: {error}") from None


def _check_call(index: int, kwargs: Mapping[str, object], tolerance: float | None) -> None:
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ValueError(
            f"tests[{index}].kwargs ({kwargs!r:.80}) must be a dict with names as keys"
        )
    if tolerance is None:
        return
    number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not number or not 0 <= tolerance < math.inf:
        raise ValueError(
            f"tests[{index}].tolerance ({tolerance!r:.40}) must be None or a number in [0, inf)"
        )


async def _tried_twice(executor: Executor, submission: Submission, tests: Sequence[Test]) -> _Sheet:
    try:
        return await _grade(executor, submission, tests)
    except LostError:
        executor.tally.retries += 1
        try:
            return await _grade(executor, submission, tests)
        except LostError as error:
            raise executor.failure(str(error)) from None


def _order(submission: Submission, tests: Sequence[Test]) -> list[int]:
    """The indices of the tests in the order in which they run.

    The submission's source determines the order, so that a grade is reproducible.
    """
    order = list(range(len(tests)))
    digest = hashlib.sha256(submission.source.encode("utf-8", "surrogatepass")).digest()
    random.Random(digest).shuffle(order)
    return sorted(order, key=lambda index: _KINDS.index(type(tests[index])))


async def _grade_apart(executor: Executor, submission: Submission, tests: Sequence[Test]) -> _Sheet:
    """Grade each test in its own process, several tests at the same time if permits are free.

    If the submission does not load in the first process, no further process starts.
    """
    order = _order(submission, tests)
    first = await _alone(executor, submission, tests[order[0]])
    if not first.loads:
        first.outcomes *= len(tests)
        return first
    single = {order[0]: first}
    if first.open:
        await _grade_rest(executor, submission, tests, deque(order[1:]), single)
    sheet = _Sheet(submission, len(tests))
    for index in order:
        # Drop outcomes after the first failure: tests in sequence would not have run.
        if not sheet.open:
            break
        sheet.stdout = sheet.stdout or single[index].stdout
        sheet.fill(index, single[index].outcomes[0])
    return sheet


async def _grade_rest(
    executor: Executor,
    submission: Submission,
    tests: Sequence[Test],
    waiting: deque[int],
    single: dict[int, _Sheet],
) -> None:
    """Grade each of the ``waiting`` tests, and put the sheet of each test into ``single``.

    The caller holds one permit. This function takes each further permit for one test, and only
    while a permit is free, so that another grade waits for at most one test.
    """

    async def run(index: int) -> None:
        single[index] = await _alone(executor, submission, tests[index])
        if not single[index].open:
            waiting.clear()

    try:
        async with asyncio.TaskGroup() as group:
            while waiting:
                while len(waiting) > 1 and executor.permits.in_flight < executor.permits.total:
                    await executor.permits.acquire()
                    task = group.create_task(run(waiting.popleft()))
                    task.add_done_callback(lambda _: executor.permits.release())
                await run(waiting.popleft())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _alone(executor: Executor, submission: Submission, test: Test) -> _Sheet:
    """Grade one test in its own process. The test fails if the process fails after the answer."""
    sheet = await _tried_twice(executor, submission, [test])
    if sheet.end is not None and sheet.outcomes[0].passed:
        sheet.outcomes = [replace(sheet.end, value=sheet.outcomes[0].value)]
    return sheet


async def _grade(executor: Executor, submission: Submission, tests: Sequence[Test]) -> _Sheet:
    sheet = _Sheet(submission, len(tests))
    order = _order(submission, tests)
    calls: dict[int, Call] = {}
    asserts = []
    for index in order:
        test = tests[index]
        if isinstance(test, StdioTest):
            continue
        call = call_of(test, submission.entry_point)
        if call is None:
            asserts.append(index)
        else:
            calls[index] = call
    if calls:
        await _grade_calls(executor, submission, calls, sheet)
    if asserts and sheet.open:
        await _grade_asserts(executor, submission, tests, asserts, sheet)
    for index in order:
        test = tests[index]
        if isinstance(test, StdioTest) and sheet.open:
            sheet.fill(index, await _grade_stdio(executor, submission, test))
    return sheet


async def _grade_calls(
    executor: Executor, submission: Submission, calls: Mapping[int, Call], sheet: _Sheet
) -> None:
    """Make all calls, one after another, in one process of the submission."""
    request = Request("calls", submission.source, submission.limits)
    current: int | None = None
    async with Candidate(executor, request) as candidate:
        try:
            await candidate.load()
            for current, call in calls.items():
                arguments, keywords = encode(call.args), encode(dict(call.kwargs))
                compare = functools.partial(_compared, submission.budget, call)
                answer = await candidate.call(call.name, arguments, keywords, compare)
                outcome = answer.value if answer.passed else answer
                if not sheet.fill(current, outcome):
                    break
        except CandidateFault as fault:
            _enter_fault(sheet, current, fault)
    _close(sheet, candidate)


def _compared(budget: MemoryBudget, call: Call, value: Any, frame: bytes) -> Outcome:
    right = equal_by(call.rules, value, call.expected, call.tolerance)
    kind = OutcomeKind.PASSED if right else OutcomeKind.WRONG
    return Outcome(kind, value if budget.take(size_of(frame)) else None)


def _enter_fault(sheet: _Sheet, current: int | None, fault: CandidateFault) -> None:
    """Record that the process ended. The current test fails, and later tests stay ``not_run``."""
    outcome = fault.outcome
    if current is not None:
        sheet.fill(current, outcome)
        return
    what = f"{outcome.error_type}: {outcome.message}".strip(": ") or outcome.kind
    where = f" (line {outcome.line})" if outcome.line else ""
    sheet.loads = False
    sheet.detail = f"the submission does not load: {what}{where}"
    sheet.outcomes = [outcome if o.kind is OutcomeKind.NOT_RUN else o for o in sheet.outcomes]


def _close(sheet: _Sheet, candidate: Candidate) -> None:
    """Record the output of the ended process, and its failure if it ended badly."""
    result = candidate.result
    assert result is not None
    sheet.stdout = sheet.stdout or result.stdout[:_STDOUT_KEPT]
    if result.status is not Status.OK and not sheet.detail:
        outcome = ended(result)
        sheet.detail = f"the process ended badly: {outcome.kind} {outcome.message}".strip()
        sheet.end = outcome


async def _grade_asserts(
    executor: Executor,
    submission: Submission,
    tests: Sequence[Test],
    order: list[int],
    sheet: _Sheet,
) -> None:
    """Run test code in one process and the submission in another. The host forwards the calls."""
    candidate = Candidate(executor, Request("calls", submission.source, submission.limits))
    examiner = Conversation(executor, Request("asserts", "", submission.limits))
    async with candidate, examiner:
        try:
            await candidate.load()
        except CandidateFault as fault:
            _enter_fault(sheet, None, fault)
        else:
            for index in order:
                test = tests[index]
                assert isinstance(test, AssertTest)
                outcome, alive = await _examine(candidate, examiner, submission, test)
                if not sheet.fill(index, outcome) or not alive:
                    break
    _close(sheet, candidate)


async def _examine(
    candidate: Candidate, examiner: Conversation, submission: Submission, test: AssertTest
) -> tuple[Outcome, bool]:
    """Run one ``AssertTest``. Return its outcome, and whether both processes can continue."""
    try:
        await examiner.send(["test", 0, test.setup, test.code, submission.entry_point])
        while True:
            match await examiner.message():
                case ["call", str(name), arguments, keywords]:
                    try:
                        answer = await candidate.call(name, arguments, keywords, _repacked)
                    except CodecError as error:  # too large when the host packs it again
                        return Outcome(OutcomeKind.ERROR, message=str(error)), False
                    raised = ["raised", answer.error_type, answer.message]
                    frame = answer.value if answer.passed else pack(raised)
                    await examiner.send_frame(frame)
                case ["passed", 0]:
                    return Outcome(OutcomeKind.PASSED), True
                case [str(kind), str(name), str(message), line, 0]:
                    text = printable(name), printable(message)
                    return Outcome(OutcomeKind(kind), None, *text, line), True
                case other:
                    raise LostError(f"the process of the tests sent {str(other)[:200]}")
    except CandidateFault as fault:
        # Of the candidate, or of the examiner if the test code itself takes too long.
        return fault.outcome, False


def _repacked(value: Any, _: bytes) -> bytes:
    return pack(["value", encode(value)])


async def _grade_stdio(executor: Executor, submission: Submission, test: StdioTest) -> Outcome:
    """Run the submission as a program on one test's standard input, and compare its output."""
    request = Request("program", submission.source, submission.limits, test.stdin.encode())
    result = executor.result(await executor.exchange(request), submission.limits)
    if result.status is Status.ERROR:
        last = result.stderr.rstrip().rpartition("\n")[2]
        kind, _, message = last.partition(": ")
        return Outcome(OutcomeKind.ERROR, result.stdout, kind, message)
    if result.status is not Status.OK:
        return replace(ended(result), value=result.stdout)
    right = same_output(result.stdout, test.stdout, test.rules)
    return Outcome(OutcomeKind.PASSED if right else OutcomeKind.WRONG, result.stdout)

"""The judge: asks, compares, decides. Nothing here runs a line of a submission.

The candidate's process produces values and never verdicts; it holds no expected value, no test and
no channel whose content is believed. A forged answer is only an answer.
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
from typing import TYPE_CHECKING, Any

from tools.sandbox.cases import AssertTest, CallTest, StdioTest, Test
from tools.sandbox.compare import equal, same_output
from tools.sandbox.conversation import Candidate, CandidateFault, Conversation, ended, printable
from tools.sandbox.inside.codec import CodecError, encode, pack
from tools.sandbox.job import Request
from tools.sandbox.limits import Limits
from tools.sandbox.literal import Call, call_of
from tools.sandbox.reading import Room, Size
from tools.sandbox.results import Outcome, OutcomeKind, Status, Verdict
from tools.sandbox.zygotes import LostError

if TYPE_CHECKING:
    from tools.sandbox.sandbox import Sandbox

_NOT_RUN = Outcome(OutcomeKind.NOT_RUN)
_STDOUT_KEPT = 4000
_KINDS = (CallTest, AssertTest, StdioTest)
"""In the order in which they are run."""


@dataclass(frozen=True)
class Submission:
    """What is graded, and how."""

    source: str
    entry_point: str | None
    limits: Limits
    stop_at_first_failure: bool
    fresh_process: bool = False
    """Whether each test has a process of its own."""
    room: Room = field(default_factory=Room)


class _Sheet:
    """Outcomes as they come in, and what speaks against the submission as a whole."""

    def __init__(self, submission: Submission, num_tests: int) -> None:
        self.outcomes = [_NOT_RUN] * num_tests
        self.detail = ""
        self.loads = True
        self.end: Outcome | None = None
        """How the process ended after its last answer, if badly."""
        self.stdout = ""
        self._stop = submission.stop_at_first_failure

    def fill(self, index: int, outcome: Outcome) -> bool:
        """Enter an outcome; whether to go on."""
        self.outcomes[index] = outcome
        return outcome.passed or not self._stop

    @property
    def open(self) -> bool:
        """Whether further tests are to be run."""
        return not self._stop or all(
            o.passed or o.kind is OutcomeKind.NOT_RUN for o in self.outcomes
        )


async def grade(sandbox: Sandbox, submission: Submission, tests: Sequence[Test]) -> Verdict:
    """See ``Sandbox.grade``."""
    check(submission, tests)
    started = time.monotonic()
    async with sandbox.slots:
        if submission.fresh_process and len(tests) > 1:
            sheet = await _grade_apart(sandbox, submission, tests)
        else:
            sheet = await _tried_twice(sandbox, submission, tests)
    sandbox.tally.grades += 1
    passed = bool(tests) and not sheet.detail and all(o.passed for o in sheet.outcomes)
    return Verdict(
        passed=passed,
        outcomes=tuple(sheet.outcomes),
        wall_s=time.monotonic() - started,
        isolation=sandbox.isolation,
        backend=sandbox.backend,
        limits_enforced_by=sandbox.limits_enforced_by,
        detail=sheet.detail if tests else "no tests",
        stdout=sheet.stdout,
    )


def check(submission: Submission, tests: Sequence[Test]) -> None:
    """These tests can be run.

    Raises:
        ValueError: one cannot; see ``Sandbox.grade``.
    """
    for index, test in enumerate(tests):
        if not isinstance(test, CallTest | StdioTest | AssertTest):
            raise ValueError(
                f"tests[{index}] ({type(test).__name__}) must be a CallTest, a StdioTest or an "
                "AssertTest"
            )
        if isinstance(test, CallTest) and not submission.entry_point:
            raise ValueError(f"tests[{index}] is a CallTest: name its function by entry_point=")
        try:
            match test:
                case CallTest(args, expected, kwargs, tolerance):
                    _check_call(index, kwargs, tolerance)
                    name = submission.entry_point
                    pack(["call", len(tests), name, encode(args), encode(dict(kwargs))])
                    encode(expected)
                case StdioTest(stdin):
                    stdin.encode()
                case AssertTest(code, setup):
                    pack(["test", 0, setup, code, submission.entry_point])
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


async def _tried_twice(sandbox: Sandbox, submission: Submission, tests: Sequence[Test]) -> _Sheet:
    try:
        return await _grade(sandbox, submission, tests)
    except LostError:
        sandbox.tally.retries += 1
        try:
            return await _grade(sandbox, submission, tests)
        except LostError as error:
            raise sandbox.failure(str(error)) from None


def _order(submission: Submission, tests: Sequence[Test]) -> list[int]:
    """The order in which tests run: a function of the submission, so a grade repeats exactly."""
    order = list(range(len(tests)))
    digest = hashlib.sha256(submission.source.encode("utf-8", "surrogatepass")).digest()
    random.Random(digest).shuffle(order)
    return sorted(order, key=lambda index: _KINDS.index(type(tests[index])))


async def _grade_apart(sandbox: Sandbox, submission: Submission, tests: Sequence[Test]) -> _Sheet:
    """Each test in a process of its own, several at once where places are free.

    What does not load is not tried again for each test.
    """
    order = _order(submission, tests)
    first = await _alone(sandbox, submission, tests[order[0]])
    if not first.loads:
        first.outcomes *= len(tests)
        return first
    single = {order[0]: first}
    if first.open:
        await _grade_rest(sandbox, submission, tests, deque(order[1:]), single)
    sheet = _Sheet(submission, len(tests))
    for index in order:
        # Beyond the first failure some may have run: one after another, they would not have.
        if not sheet.open:
            break
        sheet.stdout = sheet.stdout or single[index].stdout
        sheet.fill(index, single[index].outcomes[0])
    return sheet


async def _grade_rest(
    sandbox: Sandbox,
    submission: Submission,
    tests: Sequence[Test],
    waiting: deque[int],
    single: dict[int, _Sheet],
) -> None:
    """Fill ``single`` with the sheets of ``waiting`` tests.

    The caller has one place. A further one is taken for one test, and only when nobody waits for
    it, so that another grade is served after at most one test.
    """

    async def run(index: int) -> None:
        single[index] = await _alone(sandbox, submission, tests[index])
        if not single[index].open:
            waiting.clear()

    try:
        async with asyncio.TaskGroup() as group:
            while waiting:
                while len(waiting) > 1 and sandbox.slots.in_flight < sandbox.slots.places:
                    await sandbox.slots.acquire()
                    task = group.create_task(run(waiting.popleft()))
                    task.add_done_callback(lambda _: sandbox.slots.release())
                await run(waiting.popleft())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _alone(sandbox: Sandbox, submission: Submission, test: Test) -> _Sheet:
    """The sheet of one test; a bad end of its process is the test's."""
    sheet = await _tried_twice(sandbox, submission, [test])
    if sheet.end is not None and sheet.outcomes[0].passed:
        sheet.outcomes = [replace(sheet.end, value=sheet.outcomes[0].value)]
    return sheet


async def _grade(sandbox: Sandbox, submission: Submission, tests: Sequence[Test]) -> _Sheet:
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
        await _grade_calls(sandbox, submission, calls, sheet)
    if asserts and sheet.open:
        await _grade_asserts(sandbox, submission, tests, asserts, sheet)
    for index in order:
        test = tests[index]
        if isinstance(test, StdioTest) and sheet.open:
            sheet.fill(index, await _grade_stdio(sandbox, submission, test))
    return sheet


async def _grade_calls(
    sandbox: Sandbox, submission: Submission, calls: Mapping[int, Call], sheet: _Sheet
) -> None:
    """All calls, one at a time, in one process."""
    request = Request("calls", submission.source, submission.limits)
    current: int | None = None
    async with Candidate(sandbox, request) as candidate:
        try:
            await candidate.load()
            for current, call in calls.items():
                arguments, keywords = encode(call.args), encode(dict(call.kwargs))
                compare = functools.partial(_compared, submission.room, call)
                answer = await candidate.call(call.name, arguments, keywords, compare)
                outcome = answer.value if answer.passed else answer
                if not sheet.fill(current, outcome):
                    break
        except CandidateFault as fault:
            _enter_fault(sheet, current, fault)
    _close(sheet, candidate)


def _compared(room: Room, call: Call, value: Any, size: Size) -> Outcome:
    right = equal(value, call.expected, call.tolerance)
    kind = OutcomeKind.PASSED if right else OutcomeKind.WRONG
    return Outcome(kind, value if room.take(size) else None)


def _enter_fault(sheet: _Sheet, current: int | None, fault: CandidateFault) -> None:
    """A process that is gone fails the test it was at; the later ones stay ``not_run``."""
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
    """Judge the process as a whole once it is dead."""
    result = candidate.result
    assert result is not None
    sheet.stdout = sheet.stdout or result.stdout[:_STDOUT_KEPT]
    if result.status is not Status.OK and not sheet.detail:
        outcome = ended(result)
        sheet.detail = f"the process ended badly: {outcome.kind} {outcome.message}".strip()
        sheet.end = outcome


async def _grade_asserts(
    sandbox: Sandbox,
    submission: Submission,
    tests: Sequence[Test],
    order: list[int],
    sheet: _Sheet,
) -> None:
    """Test code in one process, the submission in another; the judge carries values between."""
    candidate = Candidate(sandbox, Request("calls", submission.source, submission.limits))
    examiner = Conversation(sandbox, Request("asserts", "", submission.limits))
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
    """One piece of test code, and whether both processes can go on."""
    try:
        await examiner.send(["test", 0, test.setup, test.code, submission.entry_point])
        while True:
            match await examiner.message():
                case ["call", str(name), arguments, keywords]:
                    try:
                        answer = await candidate.call(name, arguments, keywords, _repacked)
                    except CodecError as error:  # the candidate's spelling was shorter than ours
                        return Outcome(OutcomeKind.ERROR, message=str(error)), False
                    raised = ["raised", answer.error_type, answer.message]
                    frame = answer.value if answer.passed else pack(raised)
                    await examiner.send_frame(frame)
                case ["passed", 0]:
                    return Outcome(OutcomeKind.PASSED), True
                case [str(kind), str(name), str(message), line, 0]:
                    said = printable(name), printable(message)
                    return Outcome(OutcomeKind(kind), None, *said, line), True
                case other:
                    raise LostError(f"the process of the tests sent {str(other)[:200]}")
    except CandidateFault as fault:
        # Of the candidate or, where the test code itself takes too long, of the examiner.
        return fault.outcome, False


def _repacked(value: Any, _: Size) -> bytes:
    return pack(["value", encode(value)])


async def _grade_stdio(sandbox: Sandbox, submission: Submission, test: StdioTest) -> Outcome:
    """A fresh process for each input."""
    request = Request("program", submission.source, submission.limits, test.stdin.encode())
    result = sandbox.result(await sandbox.exchange(request), submission.limits)
    if result.status is Status.ERROR:
        last = result.stderr.rstrip().rpartition("\n")[2]
        kind, _, message = last.partition(": ")
        return Outcome(OutcomeKind.ERROR, result.stdout, kind, message)
    if result.status is not Status.OK:
        return replace(ended(result), value=result.stdout)
    right = same_output(result.stdout, test.stdout)
    return Outcome(OutcomeKind.PASSED if right else OutcomeKind.WRONG, result.stdout)

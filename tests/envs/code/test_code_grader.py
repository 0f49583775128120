"""The cache of verdicts."""

import asyncio

import pytest

from envs.code.grader import CachedGrader
from tools.sandbox import CallTest, Outcome, OutcomeKind, SandboxFailure, Verdict

TESTS = (CallTest(([1],), 1),)


class CountingSandbox:
    """Passes everything once ``go`` is set; fails while ``broken``."""

    def __init__(self):
        self.graded = []
        self.broken = False
        self.go = asyncio.Event()
        self.go.set()

    async def grade(self, source, tests, entry_point=None, *, fresh_process=False):
        self.graded.append(source)
        await self.go.wait()
        if self.broken:
            raise SandboxFailure("the sandbox broke")
        return Verdict(True, (), 0.0, "none", "counting", "nothing", detail=source)


async def test_an_equal_program_for_equal_tests_runs_once():
    sandbox = CountingSandbox()
    grader = CachedGrader(sandbox)
    first = await grader.grade("a", TESTS, "f")
    assert await grader.grade("a", (CallTest(([1],), 1),), "f") is first
    await grader.grade("b", TESTS, "f")
    await grader.grade("a", TESTS, "g")
    await grader.grade("a", (CallTest(([2],), 1),), "f")
    assert sandbox.graded == ["a", "b", "a", "a"]
    assert (grader.num_asked, grader.num_run) == (5, 4)


async def test_equal_programs_in_flight_share_one_run():
    sandbox = CountingSandbox()
    sandbox.go.clear()
    grader = CachedGrader(sandbox)
    asked = [asyncio.create_task(grader.grade("a", TESTS, "f")) for _ in range(8)]
    await asyncio.sleep(0)
    sandbox.go.set()
    verdicts = await asyncio.gather(*asked)
    assert sandbox.graded == ["a"]
    assert all(verdict is verdicts[0] for verdict in verdicts)


async def test_an_asker_that_gives_up_takes_nothing_from_the_others():
    sandbox = CountingSandbox()
    sandbox.go.clear()
    grader = CachedGrader(sandbox)
    hasty = asyncio.create_task(grader.grade("a", TESTS, "f"))
    patient = asyncio.create_task(grader.grade("a", TESTS, "f"))
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.gather(hasty, return_exceptions=True)
    sandbox.go.set()
    assert (await patient).passed
    assert hasty.cancelled()


async def test_a_failure_of_the_sandbox_reaches_every_asker_and_is_forgotten():
    sandbox = CountingSandbox()
    sandbox.broken = True
    grader = CachedGrader(sandbox)
    answers = await asyncio.gather(
        *(grader.grade("a", TESTS, "f") for _ in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [SandboxFailure] * 3
    sandbox.broken = False
    assert (await grader.grade("a", TESTS, "f")).passed
    assert sandbox.graded == ["a", "a"]


async def test_the_least_recently_asked_is_dropped():
    sandbox = CountingSandbox()
    grader = CachedGrader(sandbox, size=2)
    for source in ("a", "b", "a", "c", "a", "b"):
        await grader.grade(source, TESTS, "f")
    assert sandbox.graded == ["a", "b", "c", "b"]


async def test_closing_cancels_what_is_in_flight():
    sandbox = CountingSandbox()
    sandbox.go.clear()
    grader = CachedGrader(sandbox)
    asked = asyncio.create_task(grader.grade("a", TESTS, "f"))
    await asyncio.sleep(0.01)
    await grader.close()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_large_answers_are_cut_for_the_first_asker_as_for_the_next():
    values = [[[] for _ in range(100_000)], "x" * 5000, 1 << 100_000, [1, "a"], 10**5000]

    class Answering(CountingSandbox):
        async def grade(self, source, tests, entry_point=None, *, fresh_process=False):
            outcomes = tuple(Outcome(OutcomeKind.WRONG, value) for value in values)
            return Verdict(False, outcomes, 0.0, "none", "answering", "nothing")

    grader = CachedGrader(Answering())
    first = await grader.grade("a", TESTS, "f")
    assert await grader.grade("a", TESTS, "f") is first
    empty, text, large, small, number = (outcome.value for outcome in first.outcomes)
    assert (empty.head, empty.length) == (repr(values[0])[:500], len(repr(values[0])))
    assert repr(text) == repr(values[1])[:500] + "... (5002 characters)"
    assert repr(large).startswith("a number too long to show...")
    assert small == [1, "a"]
    assert number == 10**5000  # it takes 2 KB


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match=r"size \(0\) must be >= 1"):
        CachedGrader(CountingSandbox(), size=0)

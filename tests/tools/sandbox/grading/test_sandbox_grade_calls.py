"""Grading by calls: what passes, what fails, and how failures are reported."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio

from tools.sandbox import CallTest, Limits, OutcomeKind, make_sandbox
from tools.sandbox.grading.candidate import Candidate, CandidateFault
from tools.sandbox.host.job import Request
from tools.sandbox.inside.codec import encode

DOUBLE = "def double(x):\n    return 2 * x\n"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    async with make_sandbox(limits=Limits(wall_s=2.0)) as made:
        yield made


async def test_twenty_right_answers_pass_in_one_process(sandbox):
    source = "import os\npids = set()\n" + DOUBLE.replace(
        "    return", "    pids.add(os.getpid())\n    assert len(pids) == 1\n    return"
    )
    verdict = await sandbox.grade(source, [CallTest((i,), 2 * i) for i in range(20)], "double")
    assert verdict.passed
    assert verdict.num_passed == 20
    assert [o.value for o in verdict.outcomes] == [2 * i for i in range(20)]


async def test_a_wrong_answer_is_shown(sandbox):
    tests = [CallTest((3,), 6), CallTest((4,), 9)]
    verdict = await sandbox.grade(DOUBLE, tests, "double")
    assert not verdict.passed
    assert [o.kind for o in verdict.outcomes] == [OutcomeKind.PASSED, OutcomeKind.WRONG]
    assert verdict.outcomes[1].value == 8


async def test_an_exception_has_type_message_and_line(sandbox):
    source = "def f(x):\n    y = x\n    raise KeyError('lost')\n"
    verdict = await sandbox.grade(source, [CallTest((1,), 1)], "f")
    (outcome,) = verdict.outcomes
    assert outcome.kind is OutcomeKind.ERROR
    assert (outcome.error_type, outcome.message, outcome.line) == ("KeyError", "'lost'", 3)


async def test_a_submission_that_does_not_load_fails_each_test(sandbox):
    verdict = await sandbox.grade("def f(x:\n", [CallTest((1,), 1)] * 2, "f")
    assert not verdict.passed
    assert [o.error_type for o in verdict.outcomes] == ["SyntaxError"] * 2
    assert "SyntaxError" in verdict.detail


async def test_no_tests_and_no_entry_point_fail(sandbox):
    assert not (await sandbox.grade(DOUBLE, [], "double")).passed
    verdict = await sandbox.grade(DOUBLE, [CallTest((1,), 2)], "triple")
    assert not verdict.passed
    assert verdict.outcomes[0].message == "no function 'triple'"


async def test_a_hang_is_a_timeout_and_ends_the_grade(sandbox):
    source = "def f(x):\n    while x == 1: pass\n    return x\n"
    tests = [CallTest((i,), i) for i in range(4)]
    verdict = await sandbox.grade(source, tests, "f", limits=Limits(wall_s=0.5))
    assert not verdict.passed
    assert verdict.outcomes[1].kind is OutcomeKind.TIMEOUT
    assert {o.kind for o in verdict.outcomes} <= {
        OutcomeKind.PASSED,
        OutcomeKind.TIMEOUT,
        OutcomeKind.NOT_RUN,
    }


async def test_exiting_during_a_call_does_not_pass(sandbox):
    source = "import os\ndef f(x):\n    os._exit(0)\n"
    verdict = await sandbox.grade(source, [CallTest((1,), 1)], "f")
    assert verdict.outcomes[0].kind is OutcomeKind.KILLED
    assert not verdict.passed


EARLY = """
import sys, time
frame, calls = sys._getframe(), []
while "codec" not in frame.f_globals:
    frame = frame.f_back
codec = frame.f_globals["codec"]
receive = codec.receive_message
def eager(channel):
    calls.append(1)
    if len(calls) == 2:
        time.sleep(0.3)
        codec.send_message(channel, ["value", codec.encode(42), 2])
    return receive(channel)
codec.receive_message = eager
def f(x): return x
"""


async def test_an_answer_before_its_call_ends_the_grade(sandbox):
    """Its waiting time would extend the deadline of the submission."""
    request = Request("calls", EARLY, Limits(wall_s=20.0))
    async with Candidate(sandbox.executor, request) as candidate:
        await candidate.load()
        with pytest.raises(CandidateFault, match="the process sent an invalid answer"):
            # On a busy machine, the early answer may arrive together with the first.
            await candidate.call("f", encode((1,)), encode({}), lambda value, _: value)
            deadline = time.monotonic() + 15
            while not candidate.channel.unread:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            await candidate.call("f", encode((42,)), encode({}), lambda value, _: value)


async def test_stop_at_first_failure_does_not_run_the_rest(sandbox):
    tests = [CallTest((i,), -1) for i in range(5)]
    verdict = await sandbox.grade(DOUBLE, tests, "double", stop_at_first_failure=True)
    kinds = sorted(o.kind for o in verdict.outcomes)
    assert kinds == [OutcomeKind.NOT_RUN] * 4 + [OutcomeKind.WRONG]


async def test_a_grade_is_reproducible(sandbox):
    source = "calls = []\ndef f(x):\n    calls.append(x)\n    return list(calls)\n"
    tests = [CallTest((i,), None) for i in range(6)]
    first = await sandbox.grade(source, tests, "f")
    second = await sandbox.grade(source, tests, "f")
    assert [o.value for o in first.outcomes] == [o.value for o in second.outcomes]
    order = max((o.value for o in first.outcomes), key=len)
    assert sorted(order) == list(range(6))
    assert order != list(range(6))


async def test_tests_that_cannot_be_sent_are_the_callers_mistake(sandbox):
    with pytest.raises(ValueError, match=r"tests\[0\].*not builtin data"):
        await sandbox.grade(DOUBLE, [CallTest((object(),), 1)], "double")
    with pytest.raises(ValueError, match="entry_point="):
        await sandbox.grade(DOUBLE, [CallTest((1,), 1)])


@pytest.mark.parametrize("tolerance", [float("nan"), -1, float("inf"), True, "0.1"])
async def test_an_invalid_tolerance_is_the_callers_mistake(sandbox, tolerance):
    tests = [CallTest((1,), 2), CallTest((1,), 2, tolerance=tolerance)]
    with pytest.raises(ValueError, match=rf"tests\[1\].tolerance \({tolerance!r}\) must be"):
        await sandbox.grade(DOUBLE, tests, "double")


@pytest.mark.parametrize("kwargs", [{1: 2}, [("x", 1)]])
async def test_keywords_that_are_not_names_are_the_callers_mistake(sandbox, kwargs):
    with pytest.raises(ValueError, match=r"tests\[0\].kwargs"):
        await sandbox.grade(DOUBLE, [CallTest((1,), 2, kwargs)], "double")

"""Grading with a process for each test: no state passes between tests."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio

from tools.sandbox import (
    AssertTest,
    CallTest,
    Limits,
    OutcomeKind,
    SandboxFailure,
    StdioTest,
    make_sandbox,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSED, WRONG, TIMEOUT = OutcomeKind.PASSED, OutcomeKind.WRONG, OutcomeKind.TIMEOUT
NOT_RUN, OUTPUT = OutcomeKind.NOT_RUN, OutcomeKind.OUTPUT


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    async with make_sandbox(limits=Limits(wall_s=3.0), workers=4) as made:
        yield made


def kinds(verdict) -> list[OutcomeKind]:
    return [outcome.kind for outcome in verdict.outcomes]


STATEFUL = {
    "it counts its calls and is right once": (
        "count = 0\ndef f(x):\n    global count\n    count += 1\n"
        "    return x if count == 1 else None\n"
    ),
    "it remembers its first answer": (
        "import functools\nmemo = {}\ndef f(x):\n    return memo.setdefault('answer', x)\n"
    ),
    "it leaves a file": (
        "import os\ndef f(x):\n    if os.path.exists('seen'): return None\n"
        "    open('seen', 'w').close()\n    return x\n"
    ),
    "it breaks a builtin module": (
        "import math\ndef f(x):\n    y = math.floor(x + 0.5)\n    math.floor = lambda v: -1\n"
        "    return y\n"
    ),
}


@pytest.mark.parametrize("what", STATEFUL)
async def test_state_does_not_pass_from_test_to_test(sandbox, what):
    tests = [CallTest((i,), i) for i in range(1, 6)]
    shared = await sandbox.grade(STATEFUL[what], tests, "f")
    assert (shared.num_passed, shared.passed) == (1, False)
    apart = await sandbox.grade(STATEFUL[what], tests, "f", fresh_process=True)
    assert kinds(apart) == [PASSED] * 5
    assert (apart.passed, apart.detail) == (True, "")


async def test_every_kind_of_test_has_its_process(sandbox):
    source = (
        "import os\nused = []\ndef f(x):\n    used.append(x)\n    return len(used)\n"
        "if __name__ == '__main__': print(f(input()))\n"
    )
    tests = [
        *(AssertTest(f"assert f({i}) == 1 + 0") for i in range(3)),
        *(CallTest((i,), 1) for i in range(3)),
        StdioTest("x", "1"),
        AssertTest("assert f(0) == 1 and f(0) == 2  # within one test, state is kept"),
    ]
    assert (await sandbox.grade(source, tests, "f", fresh_process=True)).passed
    assert (await sandbox.grade(source, tests, "f")).num_passed < 6


async def test_failures_are_reported_as_usual_and_end_no_other_test(sandbox):
    source = (
        "import os\nprint('loaded')\ndef f(x):\n    if x == 1: return -1\n    if x == 2: 1 / 0\n"
        "    if x == 3:\n        while True: pass\n    if x == 4: os._exit(0)\n    return x\n"
    )
    tests = [CallTest((i,), i) for i in range(6)]
    verdict = await sandbox.grade(source, tests, "f", limits=Limits(wall_s=1), fresh_process=True)
    assert kinds(verdict) == [
        *(PASSED, WRONG, OutcomeKind.ERROR, TIMEOUT, OutcomeKind.KILLED, PASSED)
    ]
    assert verdict.outcomes[2].error_type == "ZeroDivisionError"
    assert (verdict.passed, verdict.num_passed, verdict.stdout) == (False, 2, "loaded\n")


async def test_a_limit_exceeded_at_the_end_fails_its_test(sandbox):
    source = "import os\ndef f(x):\n    if x == 2: os.write(1, b'x' * 5000)\n    return x\n"
    tests = [CallTest((i,), i) for i in range(4)]
    limits = Limits(output_kb=1)  # the answer is sent nevertheless
    verdict = await sandbox.grade(source, tests, "f", limits=limits, fresh_process=True)
    assert kinds(verdict) == [PASSED, PASSED, OUTPUT, PASSED]
    assert not verdict.passed


async def test_a_submission_that_does_not_load_is_tried_once(sandbox):
    source = "import time\nwhile True: time.sleep(1)"
    started = time.monotonic()
    verdict = await sandbox.grade(
        source, [CallTest((1,), 1)] * 400, "f", limits=Limits(wall_s=0.5), fresh_process=True
    )
    assert time.monotonic() - started < 30
    assert kinds(verdict) == [TIMEOUT] * 400
    assert verdict.detail.startswith("the submission does not load: timeout")


async def test_stopping_at_the_first_failure_is_reproducible(sandbox):
    source = "import time\ndef f(x):\n    time.sleep(x % 3 / 20)\n    return x if x > 5 else -1\n"
    tests = [CallTest((i,), i) for i in range(12)]
    seen = set()
    for _ in range(3):
        verdict = await sandbox.grade(
            source, tests, "f", stop_at_first_failure=True, fresh_process=True
        )
        assert kinds(verdict).count(WRONG) == 1
        assert NOT_RUN in kinds(verdict)
        seen.add(tuple(kinds(verdict)))
    assert len(seen) == 1
    shared = await sandbox.grade(source, tests, "f", stop_at_first_failure=True)
    assert seen == {tuple(kinds(shared))}


SLEEPS = "import time\ndef f(x):\n    time.sleep(0.25)\n    return x\n"


async def test_free_permits_are_used(sandbox):
    tests = [CallTest((i,), i) for i in range(9)]
    source = SLEEPS.replace("0.25", "1.5")
    started = time.monotonic()
    assert (await sandbox.grade(source, tests, "f", fresh_process=True)).passed
    assert time.monotonic() - started < 0.75 * 9 * 1.5  # in sequence: 13.5 s


async def test_another_grade_waits_for_one_test_at_most(sandbox):
    tests = [CallTest((i,), i) for i in range(24)]
    source = SLEEPS.replace("0.25", "3.0")
    long = asyncio.create_task(sandbox.grade(source, tests, "f", fresh_process=True))
    await asyncio.sleep(0.4)
    started = time.monotonic()
    assert (await sandbox.run("print(1)")).status == "ok"
    assert time.monotonic() - started < 2 * 3.0
    assert not long.done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)


async def test_a_cancelled_grade_returns_every_permit(sandbox):
    tests = [CallTest((i,), i) for i in range(24)]
    grade = asyncio.create_task(sandbox.grade(SLEEPS, tests, "f", fresh_process=True))
    await asyncio.sleep(0.4)
    grade.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grade
    async with asyncio.timeout(20):
        done = await asyncio.gather(*(sandbox.run("print(1)") for _ in range(8)))
    assert [one.status for one in done] == ["ok"] * 8
    assert sandbox.executor.permits.in_flight == 0


async def test_a_broken_sandbox_is_a_failure_of_the_sandbox():
    async with make_sandbox(workers=4) as made:
        tests = [CallTest((i,), i) for i in range(24)]
        grade = asyncio.create_task(made.grade(SLEEPS, tests, "f", fresh_process=True))
        await asyncio.sleep(0.4)
        await made.close()
        with pytest.raises((SandboxFailure, RuntimeError)):
            await grade

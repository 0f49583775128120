"""Processes that compare answers: right in any thread, bounded in time, replaced when dead."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.datasets import load_rows
from envs.math.rows import problems_from
from envs.math.verification.verifier import (
    LONGEST,
    MathVerifier,
    Outcome,
    UnverifiableGold,
    VerifierFailure,
)

RIGHT, WRONG, UNVERIFIABLE = Outcome.RIGHT, Outcome.WRONG, Outcome.UNVERIFIABLE
HALF = (r"\frac{1}{2}", r"\frac{\sqrt{4}}{4}")
TOWER = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier(workers=2, cpu_s=0.5)
    yield made
    made.close()


def processes(verifier):
    return {worker._process.pid for worker in verifier._all}


def test_every_outcome(verifier):
    assert verifier.check("7", "7") is RIGHT
    assert verifier.check("7", "8") is WRONG
    assert verifier.check(*HALF) is RIGHT
    assert verifier.check(HALF[0], r"\sqrt{2}") is WRONG
    assert verifier.check(HALF[0], r"\frac{") is UNVERIFIABLE
    assert verifier.check(HALF[0], "\ud800") is not RIGHT
    assert verifier.check("x^2 - 1", "x" * (LONGEST + 1)) is UNVERIFIABLE


def test_plain_numbers_start_no_process():
    verifier = MathVerifier()
    assert verifier.check("1/2", "0.5") is RIGHT
    assert processes(verifier) == set()
    assert not verifier._threads._threads
    verifier.close()


@pytest.mark.parametrize("answer", [TOWER, r"((2^{99999})^{99999})^{99999}"])
def test_a_check_that_hangs_is_killed_and_others_go_on(verifier, answer):
    verifier.check(*HALF)
    with ThreadPoolExecutor(4) as pool:
        hanging = pool.submit(verifier.check, "7", answer)
        others = [pool.submit(verifier.check, *HALF) for _ in range(40)]
        assert all(other.result(timeout=60) is RIGHT for other in others)
        assert hanging.result(timeout=60) in (UNVERIFIABLE, WRONG)
    assert len(processes(verifier)) <= 2


def test_the_limit_is_of_processor_time_and_starts_with_the_check():
    verifier = MathVerifier(workers=1, cpu_s=0.5)
    try:
        verifier.check(*HALF)
        before = processes(verifier)
        with ThreadPoolExecutor(4) as pool:
            # The last waits for three others, each of which uses its whole limit.
            futures = [pool.submit(verifier.check, "7", TOWER) for _ in range(3)]
            time.sleep(0.1)
            last = pool.submit(verifier.check, *HALF)
            assert last.result(timeout=120) is RIGHT
            assert [f.result(timeout=120) for f in futures] == [UNVERIFIABLE] * 3
        assert processes(verifier).isdisjoint(before)
    finally:
        verifier.close()


def test_memory_is_bounded_too():
    verifier = MathVerifier(workers=1, cpu_s=60.0, memory_mb=256)
    try:
        verifier.check(*HALF)
        (pid,) = processes(verifier)
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(rf"Max address space +{256 * 2**20} ", limits)
    finally:
        verifier.close()


@pytest.mark.parametrize("gold", ["", r"\frac{", TOWER, r"\frac{1}{0}"])
def test_a_gold_answer_that_cannot_be_verified_is_an_error(verifier, gold):
    # Each death costs a new process.
    for answer in ("x + 1",) if gold == TOWER else ("1", "x + 1"):
        with pytest.raises(UnverifiableGold, match="cannot be verified"):
            verifier.check(gold, answer)


def test_a_killed_process_costs_no_verdict(verifier):
    assert verifier.check(*HALF) is RIGHT
    for pid in processes(verifier):
        os.kill(pid, signal.SIGKILL)
    assert verifier.check(*HALF) is RIGHT
    assert verifier.check(HALF[0], r"\sqrt{2}") is WRONG


def test_closing_ends_processes_and_refuses_what_comes_later():
    verifier = MathVerifier(workers=1, cpu_s=30.0)
    verifier.check(*HALF)
    (pid,) = processes(verifier)
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(verifier.check, "7", TOWER)
        time.sleep(0.3)
        waiting = pool.submit(verifier.check, *HALF)
        time.sleep(0.1)
        started = time.monotonic()
        verifier.close()
        for future in (hanging, waiting):
            with pytest.raises(VerifierFailure, match="closed"):
                future.result(timeout=10)
    assert time.monotonic() - started < 25  # the check would take 30 s
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(VerifierFailure, match="the verifier is closed"):
        verifier.check(*HALF)
    assert verifier.check("1", "1") is RIGHT, "numbers need no process"
    verifier.close()


def test_limits_out_of_range():
    for limits, says in (
        ({"workers": 0}, r"workers \(0\)"),
        ({"cpu_s": 0.0}, r"cpu_s \(0.0\)"),
        ({"memory_mb": 10}, r"memory_mb \(10\)"),
    ):
        with pytest.raises(ValueError, match=says):
            MathVerifier(**limits)


@pytest.fixture(scope="module")
def golds(data_dir):
    found = []
    for name, count in (("train", 7473), ("test", 1319)):
        rows = load_rows(data_dir / f"gsm8k-{name}.jsonl.gz")
        tasks = problems_from(rows).tasks
        assert len(tasks) == count
        found += [task.answer for task in tasks]
    return found


def plus_one(gold):
    return str(int(gold) + 1)


def test_all_of_gsm8k_in_this_thread_and_in_others(verifier, golds):
    assert [verifier.check(gold, gold) for gold in golds] == [RIGHT] * len(golds)
    assert [verifier.check(gold, plus_one(gold)) for gold in golds] == [WRONG] * len(golds)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(verifier.check, golds, golds)) == {RIGHT}
        assert set(pool.map(verifier.check, golds, map(plus_one, golds))) == {WRONG}


async def test_all_of_gsm8k_under_asyncio(verifier, golds):
    async def all_of(answers):
        pairs = zip(golds, answers, strict=True)
        return await asyncio.gather(*(verifier.acheck(g, a) for g, a in pairs))

    assert set(await all_of(golds)) == {RIGHT}
    assert set(await all_of([plus_one(gold) for gold in golds])) == {WRONG}


async def test_gsm8k_by_the_processes_as_well(verifier, golds):
    """Written so that they are no plain numbers: each goes through math-verify."""
    some = golds[::40]
    right = await asyncio.gather(*(verifier.acheck(g, rf"\${g}") for g in some))
    wrong = await asyncio.gather(*(verifier.acheck(g, rf"\${plus_one(g)}") for g in some))
    assert (set(right), set(wrong)) == ({RIGHT}, {WRONG})
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(verifier.check, some, (rf"{g}\text{{ dollars}}" for g in some))) == {
            RIGHT
        }

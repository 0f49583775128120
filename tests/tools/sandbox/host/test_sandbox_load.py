"""The sandbox under load: fairness, many callers, replaced zygotes, and its health."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time

import pytest

from tools.owner import acting_for
from tools.sandbox import CallTest, Limits, SessionOver, Status, make_sandbox
from tools.sandbox.health import Health
from tools.sandbox.host import executor


async def started(**options):
    sandbox = make_sandbox("bwrap", **options)
    await sandbox.start()
    return sandbox


@pytest.fixture
async def two():
    """A sandbox with two workers."""
    sandbox = await started(workers=2)
    yield sandbox
    await sandbox.close()


@pytest.mark.quick
async def test_one_greedy_episode_delays_another_by_a_turn(two):
    """120 runs of 50 ms wait; another episode's single run finishes after about one of them."""
    with acting_for("greedy"):
        tasks = [asyncio.create_task(two.run("import time; time.sleep(0.05)")) for _ in range(120)]
    while two.executor.permits.waiting < 118:
        await asyncio.sleep(0.01)
    with acting_for("modest"):
        for _ in range(3):
            before = (await two.health()).runs
            assert (await two.run("print(1)")).stdout == "1\n"
            assert (await two.health()).runs - before <= 6
    assert two.executor.permits.waiting > 90
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (two.executor.permits.waiting, two.executor.permits.in_flight) == (0, 0)


async def test_cancelled_runs_grades_and_calls_return_their_permits(two):
    sleep = "import time; time.sleep(9)"
    async with two.session() as session:
        works = [
            two.run(sleep, limits=Limits(wall_s=9)),
            two.grade(f"def f(): {sleep}", [CallTest((), 1)], "f", limits=Limits(wall_s=9)),
            session.run("while True: pass", wall_s=9),
            session.fork(),
            two.run("print(1)"),
            two.grade("def f(): pass", [CallTest((), None)], "f"),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(0.3)
        assert (two.executor.permits.in_flight, two.executor.permits.waiting) == (
            2,
            3,
        )  # the fork waits for the call
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (two.executor.permits.in_flight, two.executor.permits.waiting) == (0, 0)
        assert (await session.run("1 + 1")).value == "2"
    assert (await two.health()).sessions == 0


@pytest.mark.parametrize("askers", [200, pytest.param(2000, marks=pytest.mark.nightly)])
async def test_thousands_of_callers_are_all_answered(askers, monkeypatch):
    """Zygotes are replaced many times meanwhile, and each caller gets its own answer."""
    monkeypatch.setattr(executor, "RECYCLE_AFTER", 20)
    sandbox = await started()
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def asker(number: int) -> None:
            with acting_for(number):
                assert (await sandbox.run(f"print({number})")).stdout == f"{number}\n"

        await asyncio.gather(*map(asker, range(askers)))
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        health = await sandbox.health()
    finally:
        await sandbox.close()
    assert (health.runs, health.queued, health.failures) == (askers, askers, 0)
    assert (health.waiting, health.in_flight) == (0, 0)
    assert grown_mb < 20
    # Further runs finish while the next zygote starts.
    assert 1 <= health.zygotes_recycled <= askers / 20
    assert health.zygotes_started == 1 + health.zygotes_recycled
    assert health.zygotes_died == 0
    assert 0 < health.queue_wait_mean_s <= health.queue_wait_p95_s + 1


async def test_the_health_counts_what_happened(two):
    started_at = time.monotonic()
    before = await two.health()
    assert before == Health(**{**dict.fromkeys(Health.__slots__, 0), "zygotes_started": 1})
    quick = Limits(wall_s=3.0, output_kb=1)
    programs = {
        "print(1)": Status.OK,
        "1 / 0": Status.ERROR,
        "while True: pass": Status.TIMEOUT,
        "print('x' * 9999)": Status.OUTPUT,
        "import os; os.kill(os.getpid(), 9)": Status.KILLED,
        "x = 'x' * (1 << 31)": Status.MEMORY,
    }
    results = await asyncio.gather(*(two.run(source, limits=quick) for source in programs))
    assert [result.status for result in results] == [*programs.values()]
    assert (await two.grade("def f(): return 1", [CallTest((), 1)], "f")).passed
    async with two.session() as session:
        await session.run("x = 1")
        await session.run("import os; os.kill(os.getpid(), 9)")
        assert (await two.health()).sessions == 0
        with pytest.raises(SessionOver):
            await session.run("x")
    async with two.session(), two.session():
        assert (await two.health()).sessions == 2
    health = (await two.health()).since(before)
    assert (health.runs, health.grades, health.calls) == (7, 1, 2)
    assert health.timeouts == health.memory_kills == health.output_kills == 1
    assert health.signal_kills == 2
    assert (health.failures, health.retries, health.zygotes_died) == (0, 0, 0)
    assert health.queued == 6 + 1 + 3  # a call to an ended session waits for a permit too
    assert 3.0 <= health.busy_s <= time.monotonic() - started_at
    assert health.runs_per_second == pytest.approx(7 / health.busy_s)
    metrics = health.metrics()
    assert (metrics["kills/signal"], metrics["runs"], metrics["zygotes/started"]) == (2, 7, 0)


async def test_a_lost_zygote_is_counted_and_its_runs_are_repeated(two):
    run = asyncio.create_task(two.run("import time; time.sleep(0.5); print('again')"))
    await asyncio.sleep(0.2)
    os.kill(two.executor.zygotes._current._process.pid, signal.SIGKILL)
    assert (await run).stdout == "again\n"
    health = await two.health()
    assert (health.zygotes_died, health.retries, health.failures, health.runs) == (1, 1, 0, 1)

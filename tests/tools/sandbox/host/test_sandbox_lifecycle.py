"""The life of a sandbox: queue, death and replacement of zygotes, event loops, leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from processes import below, called

from tools.sandbox import CallTest, Limits, SandboxFailure, Status, make_sandbox
from tools.sandbox.host import executor


@pytest.fixture(
    params=["bwrap", *(pytest.param(b, marks=pytest.mark.slow) for b in ("docker", "landlock"))]
)
def make(request, python_for, need):
    """``make_sandbox`` for a backend; without the backend, the test is skipped or fails."""
    need(request.param)

    def made(**options):
        return make_sandbox(request.param, python=python_for(request.param), **options)

    return made


async def test_no_more_run_at_once_than_workers_and_in_order(make):
    async with make(workers=2) as sandbox:
        done: list[int] = []

        async def one(number: int) -> float:
            await sandbox.run("import time; time.sleep(0.1)")
            done.append(number)
            return time.monotonic()

        started = time.monotonic()
        await asyncio.gather(*map(one, range(8)))
        assert time.monotonic() - started >= 0.4
        assert all(abs(number - index) <= 1 for index, number in enumerate(done))


async def test_a_cancelled_run_is_killed(make):
    async with make() as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await sandbox.run("import time; time.sleep(60)", limits=Limits(wall_s=60))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await sandbox.grade(
                    "import time\ndef f(): time.sleep(60)",
                    [CallTest((), 1)],
                    "f",
                    limits=Limits(wall_s=60),
                )
        # Left are the waiting processes, the zygote and its launcher.
        async with asyncio.timeout(30):
            while len(below()) > 2 * 4 + 3:
                await asyncio.sleep(0.02)
        assert (await sandbox.run("print(1)")).status is Status.OK


async def test_a_dead_zygote_is_replaced_and_its_runs_are_repeated(make):
    async with make() as sandbox:
        run = asyncio.create_task(sandbox.run("import time; time.sleep(0.6); print('again')"))
        grade = asyncio.create_task(
            sandbox.grade("import time\ndef f(): time.sleep(0.6)\n", [CallTest((), None)], "f")
        )
        await asyncio.sleep(0.3)
        os.kill(below()[0], signal.SIGKILL)
        assert (await run).stdout == "again\n"
        assert (await grade).passed


async def test_failing_twice_is_a_failure_and_no_verdict(make):
    sleeper = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'tw-sleeper'); time.sleep(9)"
    async with make() as sandbox:

        async def killing():
            while True:
                await asyncio.sleep(0.05)
                # A sleeping program runs: kill the first process of the tree.
                if called("tw-sleeper"):
                    os.kill(below()[0], signal.SIGKILL)
                    while called("tw-sleeper"):
                        await asyncio.sleep(0.01)

        killer = asyncio.create_task(killing())
        with pytest.raises(SandboxFailure) as caught:
            await sandbox.grade(
                f"def f():\n    {sleeper}", [CallTest((), 1)], "f", limits=Limits(wall_s=20)
            )
        assert caught.value.retryable
        with pytest.raises(SandboxFailure):
            await sandbox.run(sleeper, limits=Limits(wall_s=20))
        killer.cancel()
        assert (await sandbox.run("print(1)")).status is Status.OK


async def test_zygotes_are_recycled(make, monkeypatch):
    monkeypatch.setattr(executor, "RECYCLE_AFTER", 20)
    async with make() as sandbox:
        first = below()[0]
        results = await asyncio.gather(*(sandbox.run("print(1)") for _ in range(100)))
        assert all(result.stdout == "1\n" for result in results)
        deadline = time.monotonic() + 10
        while first in below():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
            await sandbox.run("print(1)")
    assert below() == []


async def test_a_cancelled_close_can_be_finished(make):
    async with make() as sandbox:
        await sandbox.run("print(1)")
        closing = asyncio.ensure_future(sandbox.executor.zygotes._current.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert below() == []


async def test_closing_ends_runs_in_flight_and_starts_nothing_for_them(make):
    sandbox = make()
    await sandbox.start()
    run = asyncio.create_task(sandbox.run("import time; time.sleep(4)"))
    await asyncio.sleep(0.3)
    await sandbox.close()
    with pytest.raises(SandboxFailure, match="closed") as failure:
        await run
    assert not failure.value.retryable
    assert below() == []


async def test_closing_ends_a_zygote_that_is_just_being_started(make):
    sandbox = make()
    await sandbox.start()
    os.kill(sandbox.executor.zygotes._current._process.pid, signal.SIGKILL)
    while not sandbox.executor.zygotes._current.dead:
        await asyncio.sleep(0.01)
    run = asyncio.create_task(sandbox.run("import time; time.sleep(4)"))
    await asyncio.sleep(0.02)
    await sandbox.close()
    with pytest.raises(SandboxFailure):
        await run
    assert below() == []


async def test_closed_and_unstarted_sandboxes_say_so(make):
    sandbox = make()
    with pytest.raises(RuntimeError, match="not started"):
        await sandbox.run("print(1)")
    async with sandbox:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await sandbox.run("print(1)")
    with pytest.raises(RuntimeError, match="started before"):
        await sandbox.start()


def test_another_loop_is_an_error(make):
    async def begin():
        sandbox = make()
        await sandbox.start()
        return sandbox

    with asyncio.Runner() as one, asyncio.Runner() as other:
        sandbox = one.run(begin())
        with pytest.raises(RuntimeError, match="another event loop"):
            other.run(sandbox.run("print(1)"))
        one.run(sandbox.close())


async def test_limits_of_one_run(make):
    async with make(limits=Limits(memory_mb=128, processes=4)) as sandbox:
        forks = (
            "import os, time\nn = 0\ntry:\n    while True:\n        n += 1\n"
            "        if os.fork() == 0: time.sleep(9)\nexcept OSError: print(n)"
        )
        if sandbox.isolation == "namespaces":
            assert (await sandbox.run(forks)).stdout == "4\n"
            few = Limits(memory_mb=128, processes=2)
            assert (await sandbox.run(forks, limits=few)).stdout == "2\n"
        big = "block = bytearray(80 << 20)\nprint('fits')"
        assert (await sandbox.run(big)).stdout == "fits\n"
        little = Limits(memory_mb=64, processes=4)
        assert (await sandbox.run(big, limits=little)).status is Status.MEMORY
        with pytest.raises(ValueError, match=r"limits.memory_mb \(256\).*\(128\)"):
            await sandbox.run(big, limits=Limits())
        with pytest.raises(ValueError, match="disk_mb"):
            await sandbox.run(big, limits=Limits(memory_mb=64, processes=1, disk_mb=1))

"""Work in a thread of its own: its outcome, the ways to stop it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rl.api.caller import blocking, wait_for
from rl.api.job import Job
from rl.errors import STALLED, RunStalled, Unclosed, UsageError
from rl.run.process.interrupt import Interrupt
from rl.settings.evaluate import EvaluateConfig


async def test_the_caller_gets_the_result_or_error_of_the_work():
    async def returns(job):
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def raises(job):
        raise UsageError("no")

    assert Job(returns, 60).result() == "turnwise-run"
    assert await Job(returns, 60).wait() == "turnwise-run"
    with pytest.raises(UsageError, match="no"):
        Job(raises, 60).result()
    with pytest.raises(UsageError, match="no"):
        await Job(raises, 60).wait()


async def test_a_run_that_listens_is_asked_once_then_cancelled():
    heard: list[str] = []
    listening, entered = threading.Event(), threading.Event()

    async def listens(job):
        async with Interrupt(heard.append, host=job) as interrupt:
            listening.set()
            assert await interrupt.unless_asked(asyncio.sleep(600)) is None
            return "stopped in order"

    job = Job(listens, 60)
    assert await asyncio.to_thread(listening.wait, 60)
    job.stop()
    assert await job.wait() == "stopped in order"
    assert len(heard) == 1

    async def stubborn(job):
        with job.listening(lambda: heard.append("asked")):
            entered.set()
            await asyncio.sleep(600)

    job = Job(stubborn, 60)
    assert await asyncio.to_thread(entered.wait, 60)
    job.stop()
    job.stop()
    with pytest.raises(asyncio.CancelledError):
        await job.wait()


async def test_a_cancelled_wait_stops_the_work_before_it_returns():
    over = []

    async def works(job):
        try:
            await asyncio.sleep(600)
        finally:
            over.append(True)

    waiting = asyncio.create_task(Job(works, 60).wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert over == [True]


async def test_work_that_blocks_is_interrupted():
    begun = threading.Event()

    def works(config):
        begun.set()
        while True:
            time.sleep(0.01)

    async def blocks(job):
        return blocking(works, EvaluateConfig(env="toy-copy"), job)

    job = Job(blocks, 60)
    assert await asyncio.to_thread(begun.wait, 60)
    job.stop()
    with pytest.raises(asyncio.CancelledError):
        await job.wait()
    assert not job._thread.is_alive()


@pytest.mark.parametrize(("code", "error"), [(STALLED, RunStalled), (76, Unclosed)])
def test_work_that_cannot_end_is_abandoned_with_an_error(code, error):
    release = threading.Event()

    async def hangs(job):
        job.end(code, "held at x.py:3")
        release.wait(60)

    job = Job(hangs, 60)
    with pytest.raises(error, match=r"held at x\.py:3"):
        job.result()
    release.set()
    job._thread.join(60)


def test_a_loop_that_does_not_end_is_named():
    release = threading.Event()

    async def leaves_a_thread(job):
        asyncio.get_running_loop().run_in_executor(None, release.wait, 60)

    job = Job(leaves_a_thread, 0.2)
    with pytest.raises(Unclosed, match=r"did not end within close_s \(0.2 s\)"):
        job.result()
    release.set()
    job._thread.join(60)


def test_a_setting_is_checked_as_a_command_checks_it(tmp_path):
    async def works(config, job):
        return config.model

    with pytest.raises(UsageError, match="holds no model"):
        wait_for(works, EvaluateConfig(env="toy-copy", model=str(tmp_path)))

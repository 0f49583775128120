"""The first signal asks to stop: work is cancelled, what came first counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from rl.run.process.interrupt import Interrupt, terminable


@pytest.fixture
def reported():
    return []


async def test_work_that_ends_first_gives_its_result(reported):
    async def work():
        await asyncio.sleep(0.01)
        return 42

    async with Interrupt(reported.append) as interrupt:
        assert await interrupt.unless_asked(work()) == 42
        assert not interrupt.asked
    assert reported == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_this_work_and_later_work(reported, number):
    happened = []

    async def work():
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
            happened.append("finished")
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            happened.append("cleaned up")
            raise

    async with Interrupt(reported.append) as interrupt:
        assert await interrupt.unless_asked(work()) is None
        assert interrupt.asked
        assert happened == ["cleaned up"], "the work is waited for"
        assert await interrupt.unless_asked(work_that_must_not_finish(happened)) is None
    assert happened == ["cleaned up"]
    assert reported == ["stopping cleanly; Ctrl-C once more stops at once"]


async def test_progress_is_saved_before_the_running_work_ends(reported):
    happened = []

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            happened.append("ended")

    async def save(what="saved"):
        happened.append(f"{what}: begun")
        await asyncio.sleep(0)
        happened.append(what)

    async with Interrupt(reported.append) as interrupt:
        assert await interrupt.unless_asked(work(), save) is None
        assert happened == ["saved: begun", "saved", "ended"]
        later = work_that_must_not_finish(happened)
        assert await interrupt.unless_asked(later, lambda: save("again")) is None
    assert happened == ["saved: begun", "saved", "ended", "again: begun", "again"]


async def work_that_must_not_finish(happened):
    await asyncio.sleep(0)
    happened.append("ran on")


async def test_an_error_of_the_work_is_raised(reported):
    async def work():
        raise RuntimeError("broken")

    async with Interrupt(reported.append) as interrupt:
        with pytest.raises(RuntimeError, match="broken"):
            await interrupt.unless_asked(work())


async def test_an_error_while_being_cancelled_is_not_swallowed(reported):
    async def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            raise RuntimeError("broken while closing")

    async with Interrupt(reported.append) as interrupt:
        with pytest.raises(RuntimeError, match="broken while closing"):
            await interrupt.unless_asked(work())


async def test_cancelling_the_caller_cancels_the_work(reported):
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async with Interrupt(reported.append) as interrupt:
        waiting = asyncio.create_task(interrupt.unless_asked(work()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(ended.wait(), 5)


TWICE = """
import asyncio, os, signal, sys, threading, time
from rl.run.process.interrupt import Interrupt

async def main():
    async with Interrupt(lambda text: print("asked", flush=True)) as interrupt:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
        while not interrupt.asked:
            await asyncio.sleep(0.01)
        time.sleep(30)  # A step that cannot be interrupted politely.

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("at once", flush=True)
"""


# Both signals come while the loop is busy: it has not yet seen the first one.
TWICE_WHILE_BUSY = """
import asyncio, os, signal, threading, time
from rl.run.process.interrupt import Interrupt

async def main():
    async with Interrupt(lambda text: print("asked", flush=True)):
        for delay in (0.2, 0.4):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(30)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("at once", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "lines"),
    [(TWICE, ["asked", "at once", ""]), (TWICE_WHILE_BUSY, ["at once", ""])],
    ids=["one after the other", "while busy"],
)
def test_a_second_ctrl_c_stops_at_once(program, lines):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=25, check=True
    )
    assert done.stdout.split("\n")[-len(lines) :] == lines


async def test_earlier_handlers_are_restored(reported):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with Interrupt(reported.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_sigterm_acts_like_ctrl_c_during_work_without_another_handler():
    default = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is default is signal.SIG_DFL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, default)


def test_sigterm_closes_resources_of_an_event_loop():
    closed = []

    async def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            closed.append("a server")

    with pytest.raises(KeyboardInterrupt), terminable():
        asyncio.run(work())
    assert closed == ["a server"]


@pytest.mark.parametrize("module", ["rl.train", "rl.status"])
def test_ctrl_c_while_a_command_imports_its_modules_is_one_line(tmp_path, module):
    """An imported package in whose first line Ctrl-C arrives."""
    (tmp_path / "chz.py").write_text("raise KeyboardInterrupt")
    started = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode in (130, -signal.SIGINT)
    assert started.stderr == "interrupted\n"

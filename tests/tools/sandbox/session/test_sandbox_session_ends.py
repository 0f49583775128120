"""Conformance: how sessions end, and that they leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import backends
import pytest
import pytest_asyncio
from processes import below

from tools.sandbox import (
    SandboxBusy,
    SandboxFailure,
    SandboxUnavailable,
    SessionOver,
    Status,
    make_sandbox,
)
from tools.sandbox.host import executor, session_permits
from tools.sandbox.host.queue import FairQueue

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def session(either):
    async with either.session() as opened:
        yield opened


async def settled(limit_s: float = 3.0) -> int:
    """Number of processes below this one, once the number is stable."""
    deadline, last = time.monotonic() + limit_s, -1
    while time.monotonic() < deadline:
        count = len(below())
        if count == last:
            break
        last = count
        await asyncio.sleep(0.15)
    return last


@pytest.mark.parametrize(
    ("code", "status", "detail"),
    [
        ("import os; os._exit(0)", Status.OK, "it exited with code 0"),
        ("import os; os._exit(9)", Status.ERROR, "it exited with code 9"),
        ("import os; os.kill(os.getpid(), 9)", Status.KILLED, "killed: signal 9"),
        ("import os; os.abort()", Status.KILLED, "killed: signal 6"),
        ("import ctypes; ctypes.string_at(0)", Status.KILLED, "killed: signal 11"),
        (
            "import os, time\nprint('began')\nfor n in range(2000):\n"
            "    if os.fork() == 0: time.sleep(60)\n",
            Status.KILLED,
            "killed: more than 16 processes",
        ),
        (
            "import os, time\nprint('began')\nfor _ in range(8):\n    if os.fork() == 0:\n"
            "        block = bytearray(b'x') * (80 << 20); time.sleep(60)\ntime.sleep(60)",
            Status.MEMORY,
            "memory: ",
        ),
    ],
)
async def test_a_crash_ends_the_session_and_says_how(session, code, status, detail):
    await session.run("x = 1")
    result = await session.run(code)
    if "2000" in code and not result.over:
        # The kernel refused the fork first; the watchdog ends the rest at its next check.
        assert (result.status, "BlockingIOError" in result.error) == (Status.ERROR, True)
        return
    assert (result.status, result.over) == (status, True)
    assert result.detail.startswith(detail)
    assert session.over
    with pytest.raises(SessionOver, match=r"is over \(.*restart"):
        await session.run("x")
    await session.restart()
    assert (
        await session.run("'x' in globals(), __import__('os').listdir()")
    ).value == "(False, [])"


async def test_output_before_a_crash_is_kept(session):
    result = await session.run(
        "import os, sys\nprint('said')\nprint('bad', file=sys.stderr)\nos._exit(1)"
    )
    assert (result.stdout, result.stderr, result.over) == ("said\n", "bad\n", True)


async def test_an_ended_session_keeps_its_end_but_not_its_output(session):
    result = await session.run(
        "import os, sys\nprint('x' * 800_000)\nprint('y' * 500_000, file=sys.stderr)\nos._exit(3)"
    )
    assert (len(result.stdout), len(result.stderr)) == (800_001, 500_001)
    assert len(session._interpreter.branch.report) < 10_000
    with pytest.raises(SessionOver, match="it exited with code 3"):
        await session.run("1")


async def test_a_session_continues_after_a_memory_error(session):
    await session.run("x = 1")
    result = await session.run("block = bytearray(1 << 30)")
    assert (result.status, result.over) == (Status.MEMORY, False)
    assert result.error.endswith("MemoryError")
    assert (await session.run("x")).value == "1"


async def test_a_bomb_of_forks_is_gone_afterwards(session, either):
    before = await settled()
    result = await session.run(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", wall_s=0.6
    )
    assert result.status in (Status.TIMEOUT, Status.KILLED)
    await session.close()
    assert await settled() <= before


async def test_a_thread_that_exits_between_calls_is_noticed(session):
    await session.run(
        "import os, threading, time\n"
        "def leave():\n    time.sleep(0.005)\n    os._exit(4)\n"
        "threading.Thread(target=leave).start()"
    )
    with pytest.raises(SessionOver, match="exited with code 4"):
        for _ in range(100):
            await asyncio.sleep(0.02)
            # The end may fall into a call, which then reports it, or between two calls.
            assert (await session.run("1")).exit_code in (None, 4)
    assert session.over


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(120, b'x' * 100)",
        "import os; os.write(120, b'\\x0b\\0\\0\\0\\1x' * 2)",
        "import os\nos.close(120)",
        "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.01), "
        "os.write(120, b'\\x0b\\0\\0\\0\\1x'))).start()",
    ],
)
async def test_a_program_that_uses_the_interpreters_socket_ends_only_itself(session, code):
    result = await session.run(code, wall_s=1.0)
    if not result.over:
        with pytest.raises(SessionOver):
            async with asyncio.timeout(15):
                while True:
                    await asyncio.sleep(0.05)
                    await session.run("1")
    await session.restart()
    assert (await session.run("1")).value == "1"


async def test_idle_and_old_sessions_end(either):
    async with either.session(idle_s=2.0) as idle, either.session(life_s=0.5) as old:
        for _ in range(5):
            await asyncio.sleep(0.5)
            await idle.run("x = 1")
        assert not idle.over
        await asyncio.sleep(2.5)
        with pytest.raises(SessionOver, match=r"timeout: idle for 2 s"):
            await idle.run("1")
        with pytest.raises(SessionOver, match=r"timeout: open for more than 0\.5 s"):
            await old.run("1")


async def test_no_more_sessions_than_allowed(either, monkeypatch):
    monkeypatch.setattr(session_permits, "_PERMIT_S", 0.2)
    few = session_permits.SessionPermits(2, "max_sessions (2) are open")
    monkeypatch.setattr(either.executor, "session_permits", few)
    async with either.session(), either.session() as second:
        failures = (await either.health()).failures
        with pytest.raises(SandboxBusy, match="max_sessions") as caught:
            await either.session().start()
        assert caught.value.retryable
        with pytest.raises(SandboxBusy, match="max_sessions"):
            await second.fork()
        assert (await either.health()).failures == failures
        await second.run("import os; os._exit(0)")  # its permit is free before it is closed
        async with either.session() as third:
            assert (await third.run("1")).value == "1"
        await second.restart()
    assert either.executor.session_permits.in_flight == 0


async def test_a_call_that_waited_while_its_session_ended_reports_the_end(either, monkeypatch):
    async with either.session() as session:
        await session.run(
            "import os, threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.01), os._exit(5))).start()"
        )
        slots = FairQueue(1)
        monkeypatch.setattr(either.executor, "permits", slots)
        await slots.acquire()  # every worker is busy
        call = asyncio.create_task(session.run("1"))
        async with asyncio.timeout(5):
            while not session.over:
                await asyncio.sleep(0.02)
                # A thread that was stopped in time continues only with the next call.
                if not session.over and not call.done():
                    slots.release()
                    result = await call
                    await slots.acquire()
                    assert result.exit_code in (None, 5)
                    call = asyncio.create_task(session.run("1"))
        slots.release()
        with pytest.raises(SessionOver, match="exited with code 5"):
            await call


async def test_a_session_whose_timer_resumes_it_between_calls_is_ended(either):
    async with either.session() as session:
        result = await session.run(
            "import ctypes, signal, struct, threading\nlibc = ctypes.CDLL(None)\n"
            "signal.signal(signal.SIGCONT, lambda *_: None)\n"
            "timer, goes_on = ctypes.c_void_p(), struct.pack('=qii', 0, 18, 0)\n"
            "event = ctypes.create_string_buffer(goes_on, 64)\n"
            "for n in range(200):\n"  # one expiry each: a stop ends a periodic timer
            "    at = struct.pack('=4q', 0, 0, n // 20, n % 20 * 50_000_000 + 1)\n"
            "    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0\n"
            "    assert libc.timer_settime(timer, 0, at, None) == 0\n"
            "def burn():\n    while True: pass\n"
            "threading.Thread(target=burn, daemon=True).start()"
        )
        assert result.status is Status.OK, result.shown
        async with asyncio.timeout(20):
            while not session.over:
                await asyncio.sleep(0.05)
        with pytest.raises(SessionOver, match="resumed between calls"):
            await session.run("1")


async def test_closing_twice_and_closing_unstarted(either):
    session = either.session()
    with pytest.raises(SessionOver, match="not started"):
        await session.run("1")
    await session.close()
    async with either.session() as session:
        await session.close()
        with pytest.raises(SessionOver, match="closed"):
            await session.run("1")


async def test_many_sessions_at_once(either):
    async def play(number: int) -> str | None:
        async with either.session() as session:
            for _ in range(10):
                await session.run(f"n = globals().get('n', {number}) + 1")
            return (await session.run("n")).value

    values = await asyncio.gather(*map(play, range(24)))
    assert values == [str(number + 10) for number in range(24)]


def own_mounts() -> list[str]:
    """This machine's mounts, except those of containers, which other processes start and stop."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    others = ("docker", "/containers/", " overlay ", " nsfs ")
    return [line for line in lines if not any(other in line for other in others)]


async def test_sessions_leave_nothing(either):
    async def one(number: int) -> None:
        session = either.session()
        await session.start()
        await session.run("import os, subprocess\nopen('f', 'w').write('x')")
        if number % 4 == 0:
            await session.run(
                "child = subprocess.Popen(['sleep', '60'], start_new_session=True)"
            ) if (either.isolation == "namespaces") else await session.run(
                "child = subprocess.Popen(['sleep', '60'])"
            )
        elif number % 4 == 1:
            await session.run("os._exit(1)")
        elif number % 4 == 2:
            await (await session.fork()).run("x = 1")  # never closed: it ends with the last one
            await session.snapshot()
        if number % 5:
            await session.close()
            return
        task = asyncio.create_task(session.run("while True: pass"))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()

    async def round_of(count: int) -> None:
        for start in range(0, count, 8):
            await asyncio.gather(*(one(number) for number in range(start, start + 8)))
            for link in list(either.executor.links):
                link.close()

    await round_of(16)
    processes, fds = await settled(), len(list(Path("/proc/self/fd").iterdir()))
    mounts = own_mounts()
    await round_of(40)
    assert await settled() <= processes + 1  # one waiting supervisor more or less
    assert len(list(Path("/proc/self/fd").iterdir())) == fds
    assert own_mounts() == mounts
    assert either.executor.session_permits.in_flight == 0
    assert either.executor.links == set()
    folders = Path("/dev/shm").glob(f"turnwise-sandbox-{os.getpid()}-*/*")
    assert len(list(folders)) <= 6


@pytest.mark.slow
async def test_hundreds_of_sessions_leave_nothing(either):
    async def one() -> None:
        async with either.session() as session, await session.fork() as twin:
            await asyncio.gather(session.run("x = 1"), twin.run("y = 1"))

    await asyncio.gather(*(one() for _ in range(16)))
    processes, fds = await settled(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(25):
        await asyncio.gather(*(one() for _ in range(16)))
    assert await settled() <= processes + 1
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


async def test_a_session_outlives_the_replacement_of_its_zygote(monkeypatch):
    monkeypatch.setattr(executor, "RECYCLE_AFTER", 3)
    sandbox = make_sandbox("bwrap")
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        backends.missing("bwrap", str(error))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(sandbox.close)
        first = sandbox.executor.zygotes._current
        async with sandbox.session() as session:
            await session.run("x = 1")
            for _ in range(30):
                await sandbox.run("1")
                await asyncio.sleep(0.02)
            assert sandbox.executor.zygotes._current is not first
            assert not first.dead
            assert (await session.run("x")).value == "1"
        async with asyncio.timeout(5):
            while not first.dead:
                await asyncio.sleep(0.02)


async def restarted(session) -> None:
    """Start again, perhaps while the dead zygote is being replaced."""
    async with asyncio.timeout(15):
        while True:
            try:
                return await session.restart()
            except SandboxFailure as failure:
                assert failure.retryable
                await asyncio.sleep(0.1)


async def test_a_dead_zygote_is_a_failure_and_no_result(either):
    async with either.session() as session:
        run = asyncio.create_task(session.run("import time; time.sleep(30)", wall_s=60))
        await asyncio.sleep(0.3)
        os.kill(either.executor.zygotes._current._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxFailure, match="state is lost") as caught:
            await run
        assert caught.value.retryable
        with pytest.raises(SessionOver, match="the sandbox failed"):
            await session.run("1")
        await restarted(session)
        assert (await session.run("1")).value == "1"

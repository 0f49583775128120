"""Blocking calls on daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tools.threads import in_thread

WHO = contextvars.ContextVar("who", default="none")


def fail(error):
    raise error


async def test_what_it_returns_and_raises_is_the_callers():
    WHO.set("me")
    assert await in_thread(lambda: (WHO.get(), threading.current_thread().daemon)) == ("me", True)
    for error in (KeyError("k"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            await in_thread(lambda error=error: fail(error))
        assert raised.value is error
    with pytest.raises(RuntimeError, match=r"raised StopIteration"):
        await asyncio.wait_for(in_thread(lambda: fail(StopIteration())), 5)


async def test_calls_that_never_return_take_no_place_from_others():
    release = threading.Event()
    stuck = [asyncio.create_task(in_thread(lambda: release.wait(20))) for _ in range(100)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(in_thread(lambda: 7), 5) == 7
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    release.set()


def test_a_process_does_not_wait_for_a_call_that_never_returns():
    program = """
        import asyncio, time
        from tools.threads import in_thread
        async def main():
            try:
                async with asyncio.timeout(0.2):
                    await in_thread(lambda: time.sleep(60))
            except TimeoutError:
                print("over")
        asyncio.run(main())
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
    assert time.monotonic() - began < 30

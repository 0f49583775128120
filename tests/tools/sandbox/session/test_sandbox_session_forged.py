"""Conformance: a session's program may attack its own interpreter and the socket to the supervisor.

Each call or copy then ends as the program's own failure: never as a failure of the sandbox, which
would void the sample, and never with an error in the host."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from tools.sandbox import CopyRefused, SessionOver, Status
from tools.sandbox.inside import frames

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOCKET = 120
ANSWER = frames.INNER.pack(frames.NOTHING, 0)
READY = frames.INNER.pack(frames.READY, 0)
FORGED = [
    ANSWER,
    READY,
    frames.INNER.pack(frames.REFUSED, 2) + b"\xff\xfe",
    frames.INNER.pack(frames.VALUE | frames.CUT, 3) + b"\xc3\x28\x00",
    frames.INNER.pack(frames.ERROR, 1 << 31),
    frames.INNER.pack(frames.VALUE, 9),
    ANSWER * 3,
    READY + ANSWER,
    b"\x0a",
    b"\xff" * 70,
]
ENDS = {"ok", "error", "killed", "timeout", "SessionOver"}
COPIES = {"copied", "SessionOver", "CopyRefused"}
AS_INTERPRETER = "import sys\ninterpreter = sys._getframe().f_back.f_locals['self']\n"


async def ended(act: Awaitable[Any]) -> str:
    """The end of a call or copy, in a word; closes what it opened."""
    try:
        made = await act
    except (SessionOver, CopyRefused) as error:
        str(error).encode()
        return type(error).__name__
    if hasattr(made, "status"):
        return str(made.status)
    await made.close()
    return "copied"


@pytest.mark.parametrize("copied_by", ["fork", "snapshot"])
async def test_a_session_that_ends_while_it_is_copied(either, copied_by):
    rng = random.Random(0)
    for _ in range(40):
        async with either.session() as session:
            await session.run(
                "import os, threading, time\ndef leave():\n"
                f"    time.sleep({rng.uniform(0, 0.006)}); os._exit(7)\n"
                "threading.Thread(target=leave).start()"
            )
            assert await ended(getattr(session, copied_by)()) in COPIES


async def test_the_end_of_a_session_during_a_copy_is_reported(either):
    async with either.session() as session:
        await session.run(
            f"import os\n{AS_INTERPRETER}interpreter.__class__._fork = lambda *_: os._exit(7)"
        )
        with pytest.raises(SessionOver, match="exited with code 7"):
            await session.fork()


@pytest.mark.parametrize("with_another", [False, True])
async def test_a_fork_just_after_the_end_of_the_session(either, with_another):
    """The supervisor may have ended, or may continue with other copies."""
    async with either.session() as session:
        twin = await session.fork() if with_another else None
        await session.run(f"import os\nos.write({SOCKET}, {ANSWER!r})")
        for _ in range(3):
            assert await ended(session.fork()) in COPIES
        if twin is not None:
            assert (await twin.run("1")).value == "1"
            await twin.close()


@pytest.mark.parametrize("number", range(len(FORGED)))
async def test_forged_frames_before_a_fork(either, number):
    for pause in (0.0, 0.003):
        async with either.session() as session:
            forge = f"import os, time\nos.write({SOCKET}, {FORGED[number]!r})\ntime.sleep({pause})"
            assert await ended(session.run(forge, wall_s=0.5)) in ENDS
            assert await ended(session.fork()) in COPIES
            assert await ended(session.run("1")) in ENDS


@pytest.mark.parametrize("number", range(len(FORGED)))
async def test_forged_frames_in_the_name_of_a_copy(either, number):
    """The session itself reads the frame that requests a copy, and forges the answer."""
    steal = (
        "import os, socket, threading\nstream = socket.socket(fileno=os.dup(120))\ndef take():\n"
        "    data, fds, _, _ = socket.recv_fds(stream, 100, 3)\n"
        f"    os.write(fds[0], {FORGED[number]!r})\n"
        f"    for fd in fds: os.close(fd)\n    stream.sendall({ANSWER!r})\n"
        "thread = threading.Thread(target=take); thread.start()"
    )
    async with either.session() as session:
        await session.run(steal)
        assert await ended(session.fork()) in COPIES
        after = session.run("1", wall_s=1.0)
        assert await ended(after) in ENDS


async def test_a_copy_that_ends_before_its_original_has_returned(either):
    async with either.session() as session:
        await session.run(
            f"import os, time\n{AS_INTERPRETER}kind = interpreter.__class__\n"
            "become, split = kind._become_copy, kind._fork_process\n"
            "def then_end(*arguments):\n    become(*arguments); os._exit(5)\n"
            "def then_wait(own):\n    copy = split(own)\n    copy or time.sleep(0.2)\n"
            "    return copy\n"
            "kind._become_copy, kind._fork_process = then_end, then_wait"
        )
        with pytest.raises(CopyRefused, match="before it was ready"):
            await session.fork()
        assert (await session.run("1")).value == "1"


@pytest.mark.parametrize("size", [20, 60_000, 400_000])
async def test_forged_answers_to_unread_calls(either, size):
    """A thread answers each call in place of the interpreter: the socket fills up."""
    async with either.session() as session:
        twin = await session.fork()
        answer = (
            "import array, fcntl, os, threading, time\n"
            "def waiting():\n    count = array.array('i', [0])\n"
            f"    fcntl.ioctl({SOCKET}, 0x541B, count)\n    return count[0]\n"
            "def answers():\n    seen = 0\n    while True:\n"
            "        while (now := waiting()) <= seen: time.sleep(0.0002)\n"
            f"        seen = now; os.write({SOCKET}, {ANSWER!r})\n"
            "threading.Thread(target=answers, daemon=True).start()\n"
            f"os.write({SOCKET}, {ANSWER!r})\ntime.sleep(60)"
        )
        assert await ended(session.run(answer)) == "ok"
        found = []
        for _ in range(600):
            found.append(await ended(session.run("#" * size, wall_s=1.0)))
            if found[-1] != "ok":
                break
        assert set(found[:-1]) <= {"ok"}
        assert found[-1] in ("killed", "timeout")
        assert await ended(session.fork()) == "SessionOver"
        assert (await twin.run("1")).value == "1"
        await twin.close()


async def test_code_that_fills_the_socket_arrives(either):
    async with either.session() as session:
        result = await session.run(f"text = {'x' * 3_000_000!r}\nlen(text)")
        assert (result.status, result.value) == (Status.OK, "3000000")


async def test_no_signal_ends_the_supervisor(either):
    if either.isolation != "namespaces":
        pytest.skip("its filter lets no signal through that could reach it")
    async with either.session() as session:
        await session.run(
            "import contextlib, os\nfor number in range(1, 65):\n"
            "    with contextlib.suppress(OSError): os.kill(1, number)"
        )
        assert await ended(session.fork()) == "copied"
        assert (await session.run("1")).value == "1"


async def test_hostile_sessions_do_not_delay_an_honest_copy(either):
    async def hostile(number: int) -> None:
        async with either.session() as session:
            await session.run(f"import os\nos.write({SOCKET}, {FORGED[number]!r})", wall_s=1.0)
            await ended(session.snapshot())

    async def honest() -> str | None:
        async with either.session() as session:
            await session.run("x = 1")
            async with await session.fork() as twin:
                return (await twin.run("x + 1")).value

    _, *values = await asyncio.gather(
        asyncio.gather(*(hostile(number) for number in range(len(FORGED)))),
        *(honest() for _ in range(4)),
    )
    assert values == ["2"] * 4

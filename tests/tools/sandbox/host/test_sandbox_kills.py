"""SIGKILL of a zygote, a container or a supervisor: runs are repeated, no verdict is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import called, children

from benchmarks.sandbox.soak_programs import HONEST
from tools.sandbox import CallTest, Limits, SandboxFailure, Status, make_sandbox
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.host import zygotes

GRADES = [kind for kind in HONEST if kind.name in ("grade", "prints", "raises", "computes")]
NAME = f"tw-kill-{os.getpid()}"[:15]
HEAD = f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {NAME.encode()!r})\n"


@pytest.fixture(params=["bwrap", "docker", "landlock"])
def make(request, python_for, need):
    """``make_sandbox`` for a backend; without the backend, the test is skipped or fails."""
    need(request.param)

    def made(**options):
        return make_sandbox(request.param, python=python_for(request.param), **options)

    return made


@pytest.fixture
def kill(request, make):
    """Function that kills the process of all runs: the sandbox's first process or container."""
    if request.node.callspec.params["make"] != "docker":
        return lambda: os.kill(children()[0], signal.SIGKILL)
    client = request.getfixturevalue("engine_client")
    listed = request.getfixturevalue("own_containers")

    def killed():
        for one in listed():
            if one["State"]["Running"]:
                client.kill(one["Id"])

    return killed


async def until(true) -> None:
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_kill_with_sixteen_in_flight_costs_no_verdict(make, kill):
    slow = HEAD + "time.sleep(1)\ndef f(x):\n    return x + 1\n"
    async with make(limits=Limits(wall_s=60), workers=16) as sandbox:
        right = [sandbox.grade(slow, [CallTest((1,), 2), CallTest((2,), 3)], "f") for _ in range(6)]
        wrong = [sandbox.grade(slow, [CallTest((1,), 2), CallTest((2,), 4)], "f") for _ in range(5)]
        runs = [sandbox.run(slow + "print(f(1))") for _ in range(5)]
        everything = asyncio.gather(*right, *wrong, *runs)
        await until(lambda: len(called(NAME)) >= 16)
        await asyncio.to_thread(kill)
        results = await everything
        assert all(verdict.passed for verdict in results[:6])
        assert [verdict.num_passed for verdict in results[6:11]] == [1] * 5
        assert [result.stdout for result in results[11:]] == ["2\n"] * 5


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_kills_at_random_moments_make_no_answer_wrong(make, kill, count):
    rng = random.Random(count)
    answered = killed = 0
    async with make(limits=Limits(wall_s=120, memory_mb=128), workers=8) as sandbox:

        async def answer(number: int) -> str:
            nonlocal answered
            mine = random.Random(number)
            (kind,) = mine.choices(GRADES, [kind.share for kind in GRADES])
            end = await kind.act(sandbox, mine)
            answered += 1
            return end.complaint

        async def killer() -> None:
            nonlocal killed
            while True:
                # Rarer than every second attempt: earlier runs in flight have finished.
                enough = answered + 40
                await until(lambda: answered >= enough)  # noqa: B023 - awaited right here
                await asyncio.sleep(rng.uniform(0, 0.2))
                await asyncio.to_thread(kill)
                killed += 1

        killing = asyncio.create_task(killer())
        complaints = await asyncio.gather(*map(answer, range(count)))
        killing.cancel()
        assert [one for one in complaints if one] == []
        assert killed >= 1


async def test_a_killed_supervisor_costs_one_repetition_and_leaves_nothing(request, make):
    text = HEAD + "for _ in range(3):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(1.0)\n"
    text += "open('left', 'w').write('x')\n"
    text += "print('again')"
    async with make(limits=Limits(wall_s=60)) as sandbox:
        run = asyncio.create_task(sandbox.run(text))
        await until(lambda: len(called(NAME)) == 4)
        first = called(NAME)
        (supervisor,) = {parent(pid) for pid in first} - set(first)
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: not set(first) & set(called(NAME)))
        result = await run
        assert result.status is Status.OK
        assert result.stdout.startswith("again\n")
        started = time.monotonic()
    assert time.monotonic() - started < 3.0  # no wait for a folder that is not removed
    assert not list(Path("/dev/shm").glob(f"turnwise-sandbox-{os.getpid()}-*"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Torn:
    """A launcher whose process is killed while its child waits for it."""

    backend = "torn"
    start_s = 10.0

    def launch(self, *arguments):
        command = f"exec -a {NAME} sleep 600 & kill -9 $$"
        return subprocess.Popen(["/bin/bash", "-c", command], start_new_session=True)

    def cleared(self, pid: int) -> bool:
        return True


async def test_the_child_of_a_killed_launcher_is_killed():
    torn = zygotes.Zygotes(Torn(), Limits(), idle=1, recycle_after=9)
    with pytest.raises(SandboxUnavailable, match="torn does not start"):
        await torn.start()
    await until(lambda: not any(NAME in line for line in command_lines()))


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return found


class Unsteady:
    """A launcher whose first ``failures`` starts fail."""

    def __init__(self, launcher, failures: int) -> None:
        self._launcher = launcher
        self.failures = failures
        self.backend = launcher.backend
        self.start_s = launcher.start_s

    def launch(self, *arguments):
        self.failures -= 1
        if self.failures >= 0:
            raise SandboxUnavailable("it is being upgraded")
        return self._launcher.launch(*arguments)

    def cleared(self, pid: int) -> bool:
        return self._launcher.cleared(pid)


@pytest.mark.parametrize(("failures", "answered"), [(5, 16), (100, 0)])
async def test_a_failed_start_is_retried_for_a_while(
    monkeypatch, python_for, need, failures, answered
):
    """As during a restart of the engine: pauses between the tries, and a last try."""
    need("landlock")
    monkeypatch.setattr(zygotes, "_PAUSES_S", (0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05))
    async with make_sandbox("landlock", python=python_for("landlock")) as sandbox:
        current = sandbox.executor.zygotes
        current._launcher = Unsteady(current._launcher, failures)
        os.kill(children()[0], signal.SIGKILL)
        await until(lambda: current._current.dead)
        results = await asyncio.gather(
            *(sandbox.run("print(1)") for _ in range(16)), return_exceptions=True
        )
        kinds = [type(result) for result in results]
        assert kinds.count(SandboxFailure) == 16 - answered
        if not answered:
            assert not results[-1].retryable
            assert "did not start 7 times in a row" in str(results[-1])

"""SIGKILL of the host while all kinds of hostile programs run: every process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import backends
import pytest
from processes import alive, below, called

from tools.sandbox.backends.docker import container

REPOSITORY = Path(__file__).resolve().parents[4]

# The programs take the process name that the test chooses.
HOST_PROGRAM = """
import asyncio, sys
from tools.sandbox import Limits, SandboxFailure, make_sandbox
backend, python, name = sys.argv[1:]
HEAD = f"import ctypes, os, signal, sys, time\\nctypes.CDLL(None).prctl(15, {name.encode()!r})\\n"
FORKS = "for _ in range(3):\\n    if os.fork() == 0: break\\n"
PROGRAMS = [HEAD + text for text in (
    FORKS + "time.sleep(600)",
    FORKS + "while True: pass",
    "while True:\\n    try: os.fork()\\n    except OSError: pass",
    "if os.fork():\\n    time.sleep(600)\\ntry: os.setsid()\\nexcept OSError: pass\\n"
    "if os.fork(): os._exit(0)\\nwhile True: time.sleep(1)",
    "for n in range(1, 65):\\n    try: signal.signal(n, signal.SIG_IGN)\\n"
    "    except (OSError, ValueError): pass\\ntime.sleep(600)",
    FORKS + "os.kill(os.getpid(), signal.SIGSTOP)",
    "kept = bytearray(b'x') * (200 << 20)\\ntime.sleep(600)",
    "os.closerange(0, 64)\\nctypes.CDLL(None).prctl(1, 0)\\ntime.sleep(600)",
)]
async def main():
    limits = Limits(wall_s=120)
    async with make_sandbox(backend, limits, python=python or None, workers=16) as sandbox:
        kept = []
        for _ in range(2):
            session = sandbox.session(limits=limits)
            await session.start()
            await session.run(HEAD + "if os.fork() == 0:\\n    while True: time.sleep(1)")
            kept += [session, await session.fork(), await session.snapshot()]
        runs = asyncio.gather(
            *(sandbox.run(text) for text in PROGRAMS + PROGRAMS[:4]),
            kept[0].run("while True: pass"),
        )
        await asyncio.sleep(1.0)
        print("up", flush=True)
        await runs
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["bwrap", "docker", "landlock"])
def test_hostile_programs_and_sessions_end_with_their_host(backend, python_for, tmp_path, request):
    name = f"tw-{os.getpid()}-{backend[0]}"
    host = subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM, backend, python_for(backend) or "", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
    )
    try:
        if host.stdout.readline() != b"up\n":
            backends.missing(backend, host.stderr.read().decode()[-300:])
        deadline = time.monotonic() + 20
        while len(called(name)) < 60 and time.monotonic() < deadline:
            time.sleep(0.05)
        before = [*called(name), *below(host.pid)]
        assert len(before) >= 60
        host.kill()
        host.wait()
        killed = time.monotonic()
        while called(name) or any(map(alive, before)):
            # A tenth to a fifth of a second on an idle machine. Processes of the lowest priority
            # take longer to die on a busy one.
            assert time.monotonic() - killed < 10
            time.sleep(0.005)
        assert list(tmp_path.iterdir()) == []
        assert not list(Path("/dev/shm").glob(f"turnwise-sandbox-{host.pid}-*"))
        if backend == "docker":
            _wait_until_no_container_is_left(request.getfixturevalue("engine_client"), host.pid)
    finally:
        host.kill()
        host.communicate()


def _wait_until_no_container_is_left(client, pid: int) -> None:
    """The engine removes an ended container asynchronously."""
    deadline = time.monotonic() + 10
    while any(
        f'"pid": {pid},' in one["Labels"][container.OWNER_LABEL]
        for one in client.containers(all=True, filters={"label": container.OWNER_LABEL})
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)

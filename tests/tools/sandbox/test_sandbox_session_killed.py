"""A judge that is killed takes its sessions with it, busy, idle and forked ones alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

JUDGE = """
import asyncio, sys
from tools.sandbox import Limits, make_sandbox
async def main():
    async with make_sandbox(sys.argv[1], Limits(wall_s=50), python=sys.argv[2] or None) as sandbox:
        async with sandbox.session() as busy, sandbox.session() as idle:
            await idle.run("import subprocess; child = subprocess.Popen(['sleep', '60'])")
            twin = await idle.fork()
            task = asyncio.create_task(busy.run("while True: pass"))
            await asyncio.sleep(0.5)
            print("up", flush=True)
            await task
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def below(pid: int) -> list[int]:
    """Every process below ``pid``."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *below(child)]
    return found


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_nothing_outlives_a_judge_that_is_killed(backend, python_for):
    judge = subprocess.Popen(
        [sys.executable, "-c", JUDGE, backend, python_for(backend) or ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        if judge.stdout.readline() != b"up\n":
            pytest.skip(judge.stderr.read().decode()[-300:])
        processes = below(judge.pid)
        assert len(processes) >= 8
        judge.kill()
        judge.wait()
        killed = time.monotonic()
        while any(alive(pid) for pid in processes):
            assert time.monotonic() - killed < 0.5
            time.sleep(0.01)
        assert not list(Path("/dev/shm").glob(f"turnwise-sandbox-{judge.pid}-*"))
    finally:
        judge.kill()
        judge.communicate()

"""What is cleaned up after a server, and what is left to others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from agents.vllm.process import SHARED_MEMORY, ServerConfig, command_line

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="needs /dev/shm")


HELD = """
import multiprocessing
from multiprocessing import shared_memory
from agents.vllm.process import SHARED_MEMORY, _orphaned

before = set(SHARED_MEMORY.iterdir())
block = shared_memory.SharedMemory(create=True, size=4096)
# One that another process finds by its name; it is mapped under another one.
lock = multiprocessing.get_context("spawn").Lock()
made = sorted(set(SHARED_MEMORY.iterdir()) - before)
assert [path.name[:4] for path in made] == ["psm_", "sem."], made
held = [_orphaned(path) for path in made]
block.close()
print(held, _orphaned(made[0]))
block.unlink()
"""


def test_what_somebody_has_mapped_is_no_orphan():
    # In a process of its own: what tracks such memory lives as long as whoever made it.
    told = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "[False, False] True\n"


STARTER = """
import asyncio, sys
from agents.vllm.process import ServerConfig, ServerProcess

async def main():
    server = ServerProcess(ServerConfig(model="m", context_window=64, python=sys.argv[1]))
    await server.start()
    print(server._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_does_not_outlive_whoever_started_it(tmp_path):
    # Stands for vLLM: a front end and an engine in one process group.
    server = tmp_path / "python"
    server.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    server.chmod(0o755)
    words = [sys.executable, "-c", STARTER, str(server)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        group = int(starter.stdout.readline())
        assert exists(group)
        starter.kill()
    deadline = time.monotonic() + 10
    while (goes_on := exists(group)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if goes_on:
        os.killpg(group, signal.SIGKILL)
    assert not goes_on, "it goes on without its trainer"


def test_a_server_is_started_to_tell_the_logprobs_that_it_sampled_by():
    words = command_line(ServerConfig(model="m", context_window=64, cpu=False), 8000)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert "--enable-scale-out" in words
    assert "--enforce-eager" not in words

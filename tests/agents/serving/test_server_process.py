"""Clean-up after a server: its processes and its shared memory, and nothing of others."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from agents.serving.orphans import SHARED_MEMORY, Used, shared_memory
from agents.serving.weight_folders import WeightFolders
from agents.vllm.server_process import ServerConfig, VLLMServerProcess, command_line

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="needs /dev/shm")


HELD = """
import multiprocessing
from multiprocessing import shared_memory
from agents.serving.orphans import SHARED_MEMORY, orphaned

before = set(SHARED_MEMORY.iterdir())
block = shared_memory.SharedMemory(create=True, size=4096)
# One that another process finds by its name; it is mapped under another one.
lock = multiprocessing.get_context("spawn").Lock()
made = sorted(set(SHARED_MEMORY.iterdir()) - before)
assert [path.name[:4] for path in made] == ["psm_", "sem."], made
held = [orphaned(path) for path in made]
block.close()
print(held, orphaned(made[0]))
block.unlink()
"""


def test_mapped_memory_is_not_orphaned():
    # In a process of its own: the tracker of such memory lives as long as its creator.
    done = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[False, False] True\n"


STARTER = """
import asyncio, sys
import torch
from agents.vllm.server_process import ServerConfig, VLLMServerProcess
from agents.serving.weight_folders import WeightFolders

async def main():
    server = VLLMServerProcess(ServerConfig(model="m", context_window=64, python=sys.argv[1]))
    await server.start()
    folder = WeightFolders().write({"w": torch.zeros(4)}, 0)
    print(server._process.pid, folder.parent, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def memory(name: str) -> Path:
    """A file of shared memory as Python makes them, which is not there yet."""
    return SHARED_MEMORY / f"psm_{os.getpid()}_{name}"


def holder(folder: Path, held: Path) -> Path:
    """Stands for vLLM: a front end and an engine in one process group, which use memory."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\nexec 3> {held}\nsleep 60 & sleep 60\n")
    program.chmod(0o755)
    return program


def test_memory_belongs_to_the_processes_that_used_it():
    mine, others = memory("mine"), memory("not_mine")
    before = shared_memory()
    with subprocess.Popen(["sh", "-c", f"exec 3> {mine}; exec sleep 60"]) as child:
        used = Used(lambda: [child.pid], before)
        while not mine.exists():
            time.sleep(0.02)
        others.touch()
        used.observe()
        assert used.orphans() == set(), "it is used"
        child.kill()
    found = used.orphans()
    for path in (mine, others):
        path.unlink()
    assert found == {mine}


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def until_gone(*there) -> bool:
    """Whether none of these is there any more, in time."""
    deadline = time.monotonic() + 20
    while (goes_on := any(one() for one in there)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not goes_on


def test_nothing_of_a_server_outlives_the_process_that_started_it(tmp_path):
    # Stands for vLLM: a front end and an engine in one process group, and shared memory.
    left, others = memory("left"), memory("others")
    server = holder(tmp_path, left)
    words = [sys.executable, "-c", STARTER, str(server)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
        group, weights = starter.stdout.readline().split()
        group, weights = int(group), Path(weights)
        assert exists(group)
        assert weights.is_dir()
        while not left.exists():
            time.sleep(0.02)
        # As it looks whose process is in another container.
        others.touch()
        starter.kill()
    clean = until_gone(lambda: exists(group), weights.exists, left.exists)
    if exists(group):
        os.killpg(group, signal.SIGKILL)
    kept = others.exists()
    for path in (left, others):
        path.unlink(missing_ok=True)
    assert clean, "it goes on without its trainer, or leaves its memory"
    assert kept, "it was never seen to use that"


async def test_a_server_is_cleaned_up_even_if_the_caller_is_cancelled(tmp_path):
    left, others = memory("cancelled"), memory("cancelled_others")
    python = str(holder(tmp_path, left))
    server = VLLMServerProcess(ServerConfig(model="m", context_window=64, python=python))
    await server.start()
    while not left.exists():
        await asyncio.sleep(0.02)
    others.touch()
    guard = server._guard._process
    recovery = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    recovery.cancel()
    await asyncio.wait({recovery})
    await server.stop()
    kept = others.exists()
    others.unlink(missing_ok=True)
    assert (left.exists(), kept) == (False, True)
    assert guard.poll() is not None


async def test_a_server_without_its_guard_is_still_ended(tmp_path, caplog):
    left = memory("unguarded")
    python = str(holder(tmp_path, left))
    server = VLLMServerProcess(ServerConfig(model="m", context_window=64, python=python))
    await server.start()
    while not left.exists():
        await asyncio.sleep(0.02)
    group = server._process.pid
    server._guard._process.kill()
    server._guard._process.wait()
    await server.stop()
    left.unlink()
    assert not exists(group)
    assert f"the guard of the vLLM server {group} is gone: see /dev/shm" in caplog.text


@pytest.mark.parametrize(
    ("log_text", "expected"),
    [
        ("ValueError: no GPU\nbye", "ValueError: no GPU (all of it: "),
        ("Error (ModuleNotFoundError: No module named 'vllm')", "it is not installed for "),
        ("", "no output (all of it: "),
    ],
)
def test_the_last_words_explain_the_end_of_a_server(tmp_path, log_text, expected):
    log = tmp_path / "vllm.log"
    log.write_text(log_text)
    config = ServerConfig(model="m", context_window=64, python="/elsewhere/python", log=log)
    assert VLLMServerProcess(config).last_words().startswith(expected)


def test_missing_vllm_is_named_even_without_a_log(monkeypatch):
    config = ServerConfig(model="m", context_window=64, python="/elsewhere/python")
    assert (
        VLLMServerProcess(config).last_words().startswith("its output was not kept: rl.eval keeps")
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = VLLMServerProcess(ServerConfig(model="m", context_window=64)).last_words()
    assert words.startswith(f"it is not installed for {sys.executable}: pip install '.[vllm]'")


def test_weights_written_during_closing_are_deleted(tmp_path):
    writing, closing = threading.Event(), threading.Event()

    class Weights(dict):
        def items(self):
            writing.set()
            closing.wait(5)
            time.sleep(0.05)
            return super().items()

    folders = WeightFolders(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(folders.write, Weights(w=torch.zeros(4)), 0)
        writing.wait(5)
        closing.set()
        folders.close()
        assert written.exception() is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="the folders are closed"):
        folders.write({"w": torch.zeros(4)}, 1)


def test_a_server_does_not_start_before_its_guard(tmp_path):
    begun = tmp_path / "begun"
    server = tmp_path / "python"
    server.write_text(f"#!/bin/sh\necho > {begun}\n")
    server.chmod(0o755)
    dying = (
        "import os, sys, asyncio\n"
        "import agents.serving.process, agents.vllm.server_process as process\n"
        "agents.serving.process.Guard = lambda **_: os._exit(9)\n"
        "config = process.ServerConfig(model='m', context_window=64, python=sys.argv[1])\n"
        "asyncio.run(process.VLLMServerProcess(config).start())\n"
    )
    words = [sys.executable, "-c", dying, str(server)]
    assert subprocess.run(words, check=False, timeout=60).returncode == 9
    time.sleep(0.5)
    assert not begun.exists()


def test_weights_that_do_not_fit_on_the_disk_are_reported_in_one_line(tmp_path):
    folders = WeightFolders(tmp_path)
    small, large = ({"w": torch.zeros(count)} for count in (4, 4096))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        first = folders.write(small, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
        with pytest.raises(OSError, match=r"version 1 cannot be written to .*: .*File too la"):
            folders.write(large, 1)
        assert [path.name for path in first.parent.iterdir()] == ["version-0"], "nothing half-made"
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (folders.write(large, 1) / "model.safetensors").stat().st_size > 4 * 4096
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        folders.close()
    assert not list(tmp_path.iterdir())


def test_a_server_reports_logprobs_of_the_sampling_distribution():
    words = command_line(ServerConfig(model="m", context_window=64, cpu=False), 8000)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert "--enable-scale-out" in words
    assert "--enforce-eager" not in words

"""Backends without mounts leave no folder, even if their start or their end is disturbed."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path

import pytest

from tools.sandbox import SandboxFailure, SandboxUnavailable, make_sandbox
from tools.sandbox.backends import cgroup, landlock, scratch
from tools.sandbox.inside import workdir
from tools.sandbox.inside.supervisor import process_tree

pytestmark = pytest.mark.filterwarnings("ignore:unsafe-local:UserWarning")


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """Parent of the zygotes' common folders."""
    monkeypatch.setattr(landlock, "_scratch_parent", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def descendants():
    """Lists the descendants that this process has got since the test began.

    Earlier tests may leave one for the life of the process, such as multiprocessing's tracker.
    """
    earlier = set(process_tree.descendants())
    return lambda: [pid for pid in process_tree.descendants() if pid not in earlier]


@pytest.mark.parametrize("broken", [(cgroup, "make"), (landlock.bundle, "write")])
async def test_a_start_that_fails_for_lack_of_descriptors(parent, monkeypatch, broken):
    def failing(*_):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(*broken, failing)
    with pytest.raises(SandboxUnavailable, match="too many open files"):
        await make_sandbox("unsafe-local").start()
    assert list(parent.iterdir()) == []


async def test_a_cancelled_close_continues(parent):
    sandbox = make_sandbox("unsafe-local")
    await sandbox.start()
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    deadline = time.monotonic() + 10
    while list(parent.iterdir()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_the_next_start_removes_what_an_ended_loop_left(parent, descendants):
    async def start_only() -> None:
        sandbox = make_sandbox("unsafe-local")
        await sandbox.start()
        run = asyncio.create_task(sandbox.run("open('f', 'w').write('x')\nwhile True: pass"))
        await asyncio.sleep(0.3)
        run.cancel()
        task = asyncio.create_task(sandbox.close())  # cancelled at the end of the loop
        await asyncio.sleep(0.001)
        assert not task.done()

    async def start_and_close() -> None:
        async with make_sandbox("unsafe-local") as sandbox:
            assert (await sandbox.run("print(1)")).stdout == "1\n"
            assert len(list(parent.iterdir())) == 1

    asyncio.run(start_only())
    deadline = time.monotonic() + 10
    while descendants():  # its supervisors kill their runs
        assert time.monotonic() < deadline
        time.sleep(0.02)
    asyncio.run(start_and_close())
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_loop_ends_at_the_first_steps_of_a_close(parent, descendants, steps):
    """The lock of the common folder is released, whichever tasks have not begun."""

    async def start_only() -> None:
        sandbox = make_sandbox("unsafe-local")
        await sandbox.start()
        closing = asyncio.ensure_future(sandbox.close())
        await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not closing.done()

    asyncio.run(start_only())
    deadline = time.monotonic() + 10
    while descendants():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    scratch.sweep(parent, "turnwise-sandbox-")
    assert list(parent.iterdir()) == []


async def test_supervisors_that_were_killed_with_their_zygote(parent, descendants):
    async with make_sandbox("unsafe-local") as sandbox:
        for pid in descendants():
            os.kill(pid, signal.SIGSTOP)  # so that none cleans up for another
        for pid in descendants():
            os.kill(pid, signal.SIGKILL)
        (common,) = parent.iterdir()
        assert list(common.iterdir())
        assert (await sandbox.run("print(1)")).stdout == "1\n"
    assert list(parent.iterdir()) == []


async def test_closing_while_the_first_zygote_starts(parent, descendants):
    sandbox = make_sandbox("unsafe-local")
    starting = asyncio.create_task(sandbox.start())
    while not list(parent.iterdir()):
        await asyncio.sleep(0)
    await sandbox.close()
    with pytest.raises((RuntimeError, SandboxFailure)):
        await starting
        await sandbox.run("print(1)")
    assert list(parent.iterdir()) == [] == descendants()


def test_a_folder_that_is_moved_while_its_tree_is_removed(tmp_path, monkeypatch):
    """Folders above the tree stay, although another process changes the tree."""
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    real = workdir._empty

    def moving(folder: int) -> list[str]:
        if Path(f"/proc/self/fd/{folder}").readlink() == tree / "a" / "b":
            (tree / "a" / "b").rename(tree / "b")
        return real(folder)

    monkeypatch.setattr(workdir, "_empty", moving)
    (tree / "etc").mkdir()
    with pytest.raises(BlockingIOError, match="moves"):
        workdir.remove_tree(str(tree))
    assert (tmp_path / "b").exists() and tree.exists()

"""Folders of killed processes are removed; those of other processes stay."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from tools.sandbox import make_sandbox
from tools.sandbox.backends import landlock, scratch
from tools.sandbox.inside import workdir


@pytest.fixture
def gone():
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def folder_of(parent, pid, name="x"):
    folder = parent / f"turnwise-sandbox-{pid}-{name}"
    (folder / "run" / "deep").mkdir(parents=True)
    (folder / "run" / "file").write_text("left behind")
    return folder


def test_folders_of_dead_processes_are_removed_and_no_others(tmp_path, gone):
    held = scratch.make(tmp_path, "turnwise-sandbox-", 0o700)
    kept = [
        held.path,
        folder_of(tmp_path, os.getppid()),
        folder_of(tmp_path, "nobody"),
        tmp_path / "another-name",
    ]
    kept[-1].mkdir()
    dead = [folder_of(tmp_path, gone, name) for name in "ab"]
    dead.append(folder_of(tmp_path, os.getpid()))  # released, as by an interrupted close
    scratch.sweep(tmp_path, "turnwise-sandbox-")
    held.release()
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert not any(folder.exists() for folder in dead)


def test_a_locked_folder_stays(tmp_path, gone):
    """For example the folder of another container, which has its own process numbers."""
    folder = folder_of(tmp_path, gone)
    hold = os.open(folder, os.O_RDONLY)
    fcntl.flock(hold, fcntl.LOCK_SH)
    scratch.sweep(tmp_path, "turnwise-sandbox-")
    assert (folder / "run" / "file").exists()
    os.close(hold)
    scratch.sweep(tmp_path, "turnwise-sandbox-")
    assert not folder.exists()


def test_a_link_of_that_name_is_not_followed(tmp_path, gone):
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("mine")
    (tmp_path / f"turnwise-sandbox-{gone}-x").symlink_to(target)
    scratch.sweep(tmp_path, "turnwise-sandbox-")
    assert (target / "file").exists()


async def test_a_sandbox_removes_old_folders_at_its_start_and_locks_its_own(
    tmp_path, monkeypatch, gone
):
    monkeypatch.setattr(landlock, "_scratch_parent", lambda: tmp_path)
    left = folder_of(tmp_path, gone)
    with pytest.warns(UserWarning, match="unconfined"):
        unsafe = make_sandbox("unsafe-local")
    async with unsafe as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        assert not left.exists()
        (own,) = tmp_path.iterdir()
        hold = os.open(own, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(hold)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_becomes_a_link_meanwhile_changes_no_mode_elsewhere(tmp_path, monkeypatch):
    """For example by a copy of a session that is still running there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o755)
    (tmp_path / "run/inner").mkdir(parents=True)
    enterable = workdir._make_enterable

    def swapped(name, folder):
        os.rmdir(name, dir_fd=folder)
        os.symlink(outside, name, dir_fd=folder)
        enterable(name, folder)

    monkeypatch.setattr(workdir, "_make_enterable", swapped)
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        workdir.remove_tree(str(tmp_path / "run"))
    assert outside.stat().st_mode & 0o777 == 0o755


def test_a_tree_deeper_than_any_path_is_removed(tmp_path, gone):
    """For example of a hostile program whose host and sandbox are killed at once."""
    folder = folder_of(tmp_path, gone)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.mkdir("closed", mode=0, dir_fd=here)
    os.close(here)
    scratch.sweep(tmp_path, "turnwise-sandbox-")
    assert list(tmp_path.iterdir()) == []

"""Control groups: used if delegated, reported only if used, removed with their sandbox."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tools.sandbox import Limits, Status, make_sandbox
from tools.sandbox.backends import cgroup
from tools.sandbox.inside.supervisor.kernel_limits import OutOfMemoryScore

IN_GROUP = "rlimit+watchdog per run, cgroup in total"

needs_delegation = pytest.mark.skipif(
    cgroup._parent() is None, reason="no control group (version 2) is delegated to this process"
)


def groups() -> set[Path]:
    parent = cgroup._parent()
    return set(parent.glob("turnwise-sandbox-*")) if parent is not None else set()


async def test_limits_enforced_by_names_the_cgroup_only_if_it_is_used(python_for):
    async with make_sandbox("bwrap") as sandbox:
        result = await sandbox.run("print(1)")
        expected = "rlimit+watchdog" if cgroup._parent() is None else IN_GROUP
        assert result.limits_enforced_by == sandbox.limits_enforced_by == expected


def test_without_a_folder_there_is_no_group():
    group = cgroup.Group(None, 16)
    assert (group.entry, group.events, group.descriptors) == (-1, -1, [])
    assert group.enforced_by == "rlimit+watchdog"
    assert group.remove()


def test_a_folder_that_is_no_group_is_refused_and_left_clean(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "_parent", lambda: tmp_path / "missing")
    assert cgroup.make(16).descriptors == []


def test_the_kernel_kills_programs_before_their_supervisors():
    def score() -> int:
        return int(Path("/proc/self/oom_score_adj").read_text())

    before = score()
    reader, writer = os.pipe()
    with OutOfMemoryScore().raised():
        pid = os.fork()
        if pid == 0:
            os.write(writer, str(score()).encode())
            os._exit(0)
    os.waitpid(pid, 0)
    assert (os.read(reader, 16), score()) == (b"1000", before)
    os.close(reader)
    os.close(writer)


@needs_delegation
async def test_a_group_lives_as_long_as_its_zygote():
    before = groups()
    async with make_sandbox("bwrap", Limits(processes=16)) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        (folder,) = groups() - before
        assert len((folder / "cgroup.procs").read_text().split()) >= 2
        assert (folder / "pids.max").read_text() == f"{512 * 17}\n"
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0.74 < int((folder / "memory.max").read_text()) / memory <= 0.75
    assert groups() == before


def test_only_groups_of_this_pid_namespace_are_swept(tmp_path):
    own = cgroup._pid_namespace()
    names = [f"{own}-{os.getpid()}-0a", f"{own + 1}-4194305-0a", "4194305-0a", f"{own}-4194305-0a"]
    for name in names:
        (tmp_path / f"turnwise-sandbox-{name}").mkdir()
    cgroup._sweep(tmp_path)
    left = {folder.name.removeprefix("turnwise-sandbox-") for folder in tmp_path.iterdir()}
    assert left == set(names[:3])


@needs_delegation
async def test_a_group_of_a_dead_trainer_is_removed():
    parent = cgroup._parent()
    assert parent is not None
    # Above the largest process id.
    left = parent / f"turnwise-sandbox-{cgroup._pid_namespace()}-4194305-00000000"
    left.mkdir()
    async with make_sandbox("bwrap"):
        assert not left.exists()


@needs_delegation
async def test_a_run_that_exhausts_the_groups_memory_ends_with_memory(monkeypatch):
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(cgroup, "_MEMORY_SHARE", (300 << 20) / total)
    async with make_sandbox("bwrap", Limits(wall_s=60, memory_mb=1000)) as sandbox:
        honest = asyncio.create_task(sandbox.run("import time\ntime.sleep(3)\nprint('fine')"))
        result = await sandbox.run("block = bytearray(b'x') * (500 << 20)\nprint('ESCAPED')")
        assert (result.status, result.stdout) == (Status.MEMORY, "")
        assert result.detail == "all runs together used up the memory of the sandbox"
        assert (await honest).stdout == "fine\n"
        assert (await sandbox.run("print('next')")).stdout == "next\n"

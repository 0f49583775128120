"""A small soak test, and a test that its census finds leftovers."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import backends
import pytest

from benchmarks.sandbox import soak_programs
from benchmarks.sandbox.soak_census import Counter, _mounts

REPOSITORY = Path(__file__).resolve().parents[3]
_REMOVE_ID = 0


@pytest.mark.parametrize("backend", ["bwrap", "docker", "landlock"])
def test_hundreds_of_runs_half_of_them_attacks_leave_nothing(backend, python_for):
    if backend == "landlock" and os.getuid() != 0:
        pytest.skip("not promised: a fork bomb makes the forks of a user's other runs fail")
    command = [sys.executable, "-m", "benchmarks.sandbox.soak", "--backend", backend]
    command += ["--runs", "300", "--every", "150", "--python", python_for(backend) or ""]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=300,
        check=False,
    )
    if done.returncode == 2:
        backends.missing(backend, done.stderr[-300:])
    result = json.loads(done.stdout)
    assert done.returncode == 0, {**result, "censuses": "", "ends": ""}
    assert (result["runs"], result["attacks"], result["leaks"]) == (300, 150, [])
    assert result["grader_growth_mb"] < 20
    ends = result["ends"]
    assert ends["prints: ok"] + ends["raises: error"] > 40
    assert ends["os-exit: error"] and ends["flood: output"] and ends["loop: timeout"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_census_finds_leftovers(folder):
    counter = Counter()
    before = counter.take()
    assert before.leaks(before, closed=True) == []
    outside = Path("/var/tmp", soak_programs.mark())
    libc = ctypes.CDLL(None)
    shared = libc.shmget(soak_programs.SYSV_KEY + os.getpid(), 4096, 0o1600)
    assert shared >= 0
    reader, writer = os.pipe()
    process = subprocess.Popen([soak_programs.mark(), "60"], executable="/bin/sleep")
    try:
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # it is still starting
            assert time.monotonic() < deadline
        outside.touch()
        (folder / "left").touch()
        leaks = "\n".join(counter.take().leaks(before, closed=True))
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)
        outside.unlink()
        libc.shmctl(shared, _REMOVE_ID, None)
    for sign in (
        "processes: ",
        "processes_marked: 1",
        "descriptors: ",
        f"file: {outside}",
        f"file: {folder / 'left'}",
        "system_v: 1",
    ):
        assert sign in leaks
    (folder / "left").unlink()
    assert counter.take().leaks(before, closed=True) == []


def test_mounts_of_other_containers_are_no_leak(tmp_path):
    """In any folder of an engine: another test process may start a container meanwhile."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "88 27 0:4 net:[4026532252] /anywhere/exec/netns/56fd rw - nsfs nsfs rw\n"
        "130 43 0:60 / /anywhere/data/overlay2/5478/merged rw shared:2 - overlay overlay rw,x=y\n"
        "131 43 0:61 / /var/lib/docker/containers/5478/mounts/shm rw - tmpfs shm rw\n"
        "132 43 0:62 / /left rw,relatime - tmpfs none rw\n"
    )
    assert list(_mounts(table, True)) == ["/left (tmpfs)"]
    assert len(list(_mounts(table, False))) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_the_census_finds_mounts(folder):
    """In a private mount table of this thread."""
    found: list[str] = []

    def look() -> None:
        new_mounts, private = 0x20000, 0x44000
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None):
            found.append(os.strerror(ctypes.get_errno()))
            return
        counter = Counter(mounts=Path("/proc/thread-self/mountinfo"))
        before = counter.take()
        libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, None)
        found.extend(counter.take().leaks(before, closed=True))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    if found == ["Operation not permitted"]:
        pytest.skip("root may not mount here")
    assert f"mount: {folder} (tmpfs)" in found

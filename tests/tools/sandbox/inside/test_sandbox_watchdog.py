"""When the watchdog of a run makes its first check."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools.sandbox.inside.supervisor import usage, watchdog

REQUEST = {"memory_mb": 1024, "disk_mb": 64, "total_cpu_s": 1000.0, "processes": 16}
CONFIG = SimpleNamespace(isolation="namespaces", group_events_fd=-1, proc_fd=-1)
WORKDIR = SimpleNamespace(private=True, folder="/tmp")


@pytest.fixture
def checks(monkeypatch):
    """Function that ticks a watchdog, and returns at which of the ticks it checked the run.

    Its arguments are ticks: the milliseconds since the start, the milliseconds of processor
    time that the program has used, and the number of its processes; and the processor seconds of
    a check, because a slow one delays the next one.
    """
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def checks(*ticks, check_s=0.0):
        at = SimpleNamespace(now=0, computed=0, members=[process.pid])
        seen = []
        clock = SimpleNamespace(
            monotonic=lambda: at.now / 1000, thread_time=lambda: len(seen) * check_s
        )
        monkeypatch.setattr(watchdog, "time", clock)
        monkeypatch.setattr(watchdog, "processor_s", lambda pid: at.computed / 1000)
        child = SimpleNamespace(pid=process.pid, cpu_s=0.0)
        guard = watchdog.Watchdog(CONFIG, WORKDIR, REQUEST, child, lambda: at.members)
        monkeypatch.setattr(guard, "_check", lambda: seen.append(at.now) or "")
        for now, computed, processes in ticks:
            at.now, at.computed, at.members = now, computed, [process.pid] * processes
            assert guard.tick() == ""
        return seen

    yield checks
    process.communicate(b"\n", timeout=60)


def test_the_first_check_waits_once_for_a_program_that_has_hardly_computed(checks):
    assert checks((10, 1, 1), (21, 9, 1), (35, 9, 1), (42, 9, 1), (68, 9, 1)) == [42, 68]


def test_the_first_check_does_not_wait_for_a_program_that_computes(checks):
    assert checks((10, 1, 1), (21, 11, 1), (42, 11, 1)) == [21]
    assert checks((10, 1, 1), (21, 11, 1), (47, 11, 1)) == [21, 47]


def test_the_first_check_does_not_wait_for_a_program_with_children(checks):
    assert checks((21, 1, 2)) == [21]


RENAMER = """
import os, sys
os.chdir(sys.argv[1])
print(flush=True)
while True:
    os.rename("a", "b"); os.rename("b", "a")
"""


@pytest.fixture
def files(tmp_path):
    """Function that makes a measurement of the files in a folder with 2 MiB, of which 1 may be."""
    folder = tmp_path / "run"
    deep = folder.joinpath("a", *["x"] * 40)
    deep.mkdir(parents=True)
    (deep / "big").write_bytes(bytes(2 << 20))

    def made(members=()):
        return watchdog._Files(str(folder), 1 << 20, 16, lambda: list(members))

    return made


def test_files_in_a_folder_that_is_renamed_all_the_time_are_found(files, tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "free_bytes", lambda folder: 0)
    with subprocess.Popen(
        [sys.executable, "-c", RENAMER, str(tmp_path / "run")], stdout=subprocess.PIPE
    ) as renamer:
        renamer.stdout.readline()
        try:
            for _ in range(20):
                assert files([renamer.pid]).trouble([], {}, stopped=False) == "files exceed 1 MiB"
            assert renamer.poll() is None, "it continues"
        finally:
            renamer.kill()


def test_files_are_measured_early_if_the_file_system_fills(files, monkeypatch):
    free = SimpleNamespace(bytes=10 << 20)
    clock = SimpleNamespace(
        now=0.0, thread_time=iter(range(1000)).__next__, time_ns=lambda: 1 << 62
    )
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(watchdog, "free_bytes", lambda folder: free.bytes)
    guard = files()
    used = SimpleNamespace(bytes=400 << 10, measured=0)

    def measure(entries, maps):
        used.measured += 1
        return used.bytes, 1, True

    monkeypatch.setattr(guard, "_measure", measure)
    assert guard.trouble([], {}, stopped=False) == ""
    assert (used.measured, guard.left) == (1, 624 << 10)
    free.bytes -= 624 << 10
    assert guard.trouble([], {}, stopped=False) == ""
    assert used.measured == 1, "a measurement took a second: the next one waits"
    free.bytes -= 1
    used.bytes = 2 << 20
    assert guard.trouble([], {}, stopped=False) == "files exceed 1 MiB"
    assert used.measured == 2
    clock.now = 100.0
    used.bytes = 0
    assert guard.trouble([], {}, stopped=False) == ""
    assert used.measured == 3


def test_processes_are_stopped_only_if_the_file_system_has_lost_room(files, monkeypatch):
    free = SimpleNamespace(bytes=10 << 20)
    stops = []
    monkeypatch.setattr(watchdog, "free_bytes", lambda folder: free.bytes)
    monkeypatch.setattr(watchdog.time, "time_ns", lambda: 0)  # every folder has just changed
    guard = watchdog._Files(files()._folder, 64 << 20, 16, lambda: stops.append(1) or [])
    assert guard.trouble([], {}, stopped=False) == ""
    free.bytes -= 20 << 20
    guard._next = 0.0
    assert guard.trouble([], {}, stopped=False) == ""
    assert stops == []
    for change in (10 << 20, -(13 << 20)):
        free.bytes += change
        guard._next = 0.0
        assert guard.trouble([], {}, stopped=False) == ""
    assert stops != []


PARENT, CHILD = 2**22 + 1, 2**22 + 2  # above every process id of Linux


def usage_of(cpu_s, children_s=0.0):
    return watchdog.usage.Usage(0, False, 0, 0, cpu_s, children_s, 0, ())


def test_a_child_that_its_parent_reaps_counts_once():
    unreaped = usage.UnreapedTime()
    assert unreaped.update({PARENT: usage_of(0.1), CHILD: usage_of(0.5)}, 0.0) == 0
    assert unreaped.update({PARENT: usage_of(0.7, 0.6)}, 0.0) == 0
    assert unreaped.update({PARENT: usage_of(0.7, 0.6)}, 0.0) == 0


def test_a_child_that_is_reaped_after_its_parent_was_measured_counts_once():
    unreaped = usage.UnreapedTime()
    unreaped.update({PARENT: usage_of(0.1), CHILD: usage_of(0.5)}, 0.0)
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.0) == 0
    assert unreaped.update({PARENT: usage_of(0.7, 0.6)}, 0.0) == 0


def test_a_child_that_the_supervisor_reaps_counts_once():
    unreaped = usage.UnreapedTime()
    unreaped.update({PARENT: usage_of(0.1), CHILD: usage_of(0.5)}, 0.0)
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.6) == 0
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.6) == 0


def test_a_child_that_no_process_reaps_counts_from_the_second_check_after_its_end():
    unreaped = usage.UnreapedTime()
    unreaped.update({PARENT: usage_of(0.1), CHILD: usage_of(0.5)}, 0.0)
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.0) == 0
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.0) == 0.5
    assert unreaped.update({PARENT: usage_of(0.1)}, 0.0) == 0.5


def test_a_process_that_a_list_missed_is_not_taken_for_ended():
    unreaped, here = usage.UnreapedTime(), os.getpid()
    unreaped.update({here: usage_of(0.5)}, 0.0)
    for _ in range(3):
        assert unreaped.update({}, 0.0) == 0
    assert unreaped.update({here: usage_of(0.6)}, 0.0) == 0


def test_shared_memory_is_measured_rarely_but_always_before_a_run_is_let_beyond_its_limit(
    monkeypatch,
):
    at = SimpleNamespace(now=0.0, measured=0)

    def proportional(entry):
        at.measured += 1
        return 60

    clock = SimpleNamespace(monotonic=lambda: at.now, thread_time=lambda: at.measured / 100)
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(watchdog.usage, "proportional", proportional)
    used = {1: usage_of(0.0)._replace(resident=100), 2: usage_of(0.0)._replace(resident=100)}
    shared = watchdog._SharedMemory()

    def measured(beyond, *, stopped=False):
        before = at.measured
        assert shared.counted_twice(used, beyond, stopped=stopped) in {0, 80}
        return at.measured > before

    assert not measured(0)  # within the limit as the resident sizes are
    assert measured(50)
    at.now += 0.1  # the measurement took 0.02 s: the next one is due 0.14 s after it
    assert not measured(80)
    assert measured(81)
    assert measured(50, stopped=True)
    at.now += 0.13
    assert not measured(50)
    at.now += 0.02
    assert measured(50)


def test_files_that_may_have_reached_their_limit_are_checked_at_once(checks, monkeypatch):
    mib = iter([0, 30, 60, 65])  # written at the start, and at each look
    monkeypatch.setattr(watchdog, "free_bytes", lambda folder: 1024 - next(mib) << 20)
    monkeypatch.setattr(watchdog, "_PROCESSORS", 2)
    monkeypatch.setattr(WORKDIR, "private", False)
    # At 8 GiB a second, the 34 MiB that are left at the first look last for 4.2 ms.
    assert checks((1, 1, 2), (4, 4, 2), (5.5, 5, 2), (6, 6, 2), (6.7, 6, 2)) == [6.7]


def test_files_that_only_a_neighbour_fills_cost_an_eighth_of_a_core(checks, monkeypatch):
    mib = iter(range(0, 100_000, 65))  # a new look always finds that the limit may be reached
    monkeypatch.setattr(watchdog, "free_bytes", lambda folder: (1 << 40) - (next(mib) << 20))
    monkeypatch.setattr(WORKDIR, "private", False)
    seen = checks(*[(now, now, 2) for now in range(1, 1001)], check_s=0.002)
    assert 60 <= len(seen) <= 70  # of 2 ms each: 125 ms of a second, and 6 ms at its start

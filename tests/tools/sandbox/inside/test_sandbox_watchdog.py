"""How often the watchdog checks a run."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tools.sandbox.inside.supervisor import mappings, watchdog

BUSY, WAITING = "while True: pass", "import time\nprint(1, flush=True)\ntime.sleep(600)"
REQUEST = {"memory_mb": 1024, "disk_mb": 64, "total_cpu_s": 1000.0, "processes": 16}


@pytest.fixture
def checks(monkeypatch):
    """Function that counts the checks of a program until a condition holds."""
    made = []
    read = mappings.read

    def count(*arguments):
        seen.append(arguments)
        return read(*arguments)

    seen = []
    monkeypatch.setattr(mappings, "read", count)

    def checks(program, enough):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        made.append(process)
        if program == WAITING:
            process.stdout.readline()
        config = SimpleNamespace(isolation="namespaces", group_events_fd=-1)
        workdir = SimpleNamespace(private=True, folder="/tmp")
        child = SimpleNamespace(pid=process.pid, cpu_s=0.0)
        guard = watchdog.Watchdog(config, workdir, REQUEST, child, lambda: [process.pid])
        started = time.monotonic()
        while not enough(process.pid, time.monotonic() - started):
            assert time.monotonic() - started < 100
            assert guard.tick() == ""
            time.sleep(0.001)
        return len(seen)

    yield checks
    for process in made:
        process.kill()
        process.communicate()


def cpu_s(pid):
    return time.clock_gettime(~pid << 3 | 2)


def test_a_busy_program_is_checked_all_the_time(checks):
    assert checks(BUSY, lambda pid, _: cpu_s(pid) > 0.5) >= 3


def test_a_waiting_program_is_checked_at_most_four_times_a_second(checks):
    assert checks(WAITING, lambda _, passed: passed > 0.6) <= 3

"""How often the watchdog of a run looks at its processes."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tools.sandbox.inside import mappings, watchdog

BUSY, WAITING = "while True: pass", "import time\nprint(1, flush=True)\ntime.sleep(600)"
REQUEST = {"memory_mb": 1024, "disk_mb": 64, "total_cpu_s": 1000.0, "processes": 16}


@pytest.fixture
def looks(monkeypatch):
    """Counts the looks at a program until a condition on it holds."""
    made = []
    read = mappings.read

    def count(*arguments):
        seen.append(arguments)
        return read(*arguments)

    seen = []
    monkeypatch.setattr(mappings, "read", count)

    def looks(program, enough):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        made.append(process)
        if program == WAITING:
            process.stdout.readline()
        config = SimpleNamespace(isolation="namespaces", group_events_fd=-1)
        place = SimpleNamespace(private=True, folder="/tmp")
        child = SimpleNamespace(pid=process.pid, cpu_s=0.0)
        guard = watchdog.Watchdog(config, place, REQUEST, child, lambda: [process.pid])
        started = time.monotonic()
        while not enough(process.pid, time.monotonic() - started):
            assert time.monotonic() - started < 100
            assert guard.tick() == ""
            time.sleep(0.001)
        return len(seen)

    yield looks
    for process in made:
        process.kill()
        process.communicate()


def cpu_s(pid):
    return time.clock_gettime(~pid << 3 | 2)


def test_a_program_that_computes_is_looked_at_all_the_time(looks):
    assert looks(BUSY, lambda pid, _: cpu_s(pid) > 0.5) >= 3


def test_a_program_that_waits_is_looked_at_at_most_four_times_a_second(looks):
    assert looks(WAITING, lambda _, passed: passed > 0.6) <= 3

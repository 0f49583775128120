"""The watchdog where its own means fail it: no terminal, a process that was stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[4]
WATCHED = """
import asyncio, os, signal, subprocess, sys, threading
import time
from pathlib import Path
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig
from rl.run.process import watchdog
from rl.run.process.activity import Activities

watchdog.STOPPED_S = 1.0
words = ["env=code-sandbox", "env.step_timeout_s=1", "stall_s=3", "close_s=3"]
config = parse(TrainConfig, words, command="train", presets={})
activities = Activities()

def work():
    print("begun", flush=True)
    for _ in range(40):  # with room for a busy machine between two of them
        end = time.process_time() + 0.05
        while time.process_time() < end:
            sum(range(1000))
        activities.progressed("some work")

def report(words):
    raise SystemExit(1)  # as rich does where the terminal is gone

def stop_once(read=activities.last_progress):
    silent_s, what = read()
    if threading.current_thread().name == "turnwise-watchdog":
        activities.last_progress = read
        goes_on = "import os, sys, time; time.sleep(5); os.kill(int(sys.argv[1]), 18)"
        subprocess.Popen([sys.executable, "-c", goes_on, str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # another thread may be stopped first
        silent_s += 5  # whatever the other thread did since
    return silent_s, what

if sys.argv[2].startswith("stopped"):
    activities.last_progress = stop_once

async def main(hangs):
    async with watchdog.Watchdog(activities, Path(sys.argv[1]), config, report):
        await (asyncio.Event().wait() if hangs else asyncio.to_thread(work))

try:
    asyncio.run(main(sys.argv[2] == "hangs"))
except watchdog.RunStalled as stalled:
    print(stalled)
    sys.exit(75)
"""


@pytest.fixture
def watched(tmp_path):
    """Starts a process under a watchdog whose stderr has no reader."""
    started = []

    def start(what: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WATCHED, str(tmp_path), what]
        environment = os.environ | {"PYTHONPATH": str(HOME)}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_run_whose_terminal_is_gone_is_ended_all_the_same(watched):
    process = watched("hangs")
    reported, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "no progress for" in reported


def test_a_process_that_was_stopped_goes_on(watched):
    process = watched("works")
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_process_that_was_stopped_during_a_look_goes_on(watched):
    process = watched("stopped during a look")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_process_without_a_reader_of_its_errors_ends():
    program = (
        "import os, sys\n"
        "from rl.run.process.closing import end_process\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "os.dup2(write, 2)\n"
        "end_process(75, 'x')\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=HOME, timeout=60, check=False)
    assert done.returncode == 75

"""Nothing hangs forever: a hung run of rl.train ends its process and names what hangs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import warm_start
from processes import alive

from rl.run.process.state import read_state
from rl.status import main as status

HOME = Path(__file__).resolve().parents[2]
SHORT = {"stall_s": 5, "close_s": 3, "env__step_timeout_s": 4}


@pytest.fixture
def hung(words, tmp_path):
    """Runs rl.train in a process in which something hangs: exit code, what it said, its folder."""

    def run(what, **settings):
        out = tmp_path / "run"
        command = command_of(what, words(out, **SHORT | settings))
        done = warm_start.run(command, env=environment(), timeout=150)
        return done.returncode, done.stderr, out

    return run


def command_of(what, words):
    return [str(HOME / "tests" / "helpers" / "hung_runs.py"), what, *words]


def environment():
    path = os.pathsep.join(map(str, (HOME, HOME / "tests" / "helpers")))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def test_an_episode_that_hangs_once_is_begun_again(hung):
    code, reported, out = hung("one completion")
    assert code == 0
    assert "rollout: train task" in reported
    assert "its episodes restart" in reported
    assert (
        "was given up: nothing in the run got further, at last waiting for the policy" in reported
    )
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum(r.get("retries", 0) for r in records) == 1
    assert sum(r.get("failures", 0) for r in records) == 0
    state = read_state(out)
    assert (state.verdict, state.recoveries, state.step) == ("finished", 1, 4)
    assert state.message == "", "what is over is not how it ended"
    assert "hang_in_policy.<locals>.hung" in (out / "stalled.txt").read_text(), (
        "where every task stood"
    )


@pytest.mark.parametrize(
    ("what", "hints"),
    [
        ("env holds the loop", ["the event loop is held at hung_runs.py:", "HungEnv.hang"]),
        ("env takes no cancelling", ["rollout: train task", "environment for", "HungEnv.hang"]),
        ("policy", ["rollout: ", "generate for", "the run ends"]),
        ("learner", ["learner: step 2, learn for"]),
    ],
)
def test_a_run_without_progress_ends(hung, capsys, what, hints):
    code, reported, out = hung(what)
    assert code == 75
    assert [hint for hint in hints if hint not in reported] == [], reported
    state = read_state(out)
    assert (state.verdict, state.exit_code) == ("stalled", 75)
    assert status([str(out)]) == 11
    assert "no progress for" in capsys.readouterr().out


def test_episodes_that_always_hang_fail_the_run(hung):
    # A busy machine's run may make no progress for some seconds.
    settings = {"stall_s": 6, "env__step_timeout_s": 1}
    code, reported, _ = hung("every completion", group_size=2, prompts=2, **settings)
    assert code == 1
    assert "4 of 4 episodes failed" in reported
    assert "at last waiting for the policy" in reported


@pytest.mark.parametrize(
    ("what", "reported_at_the_end"),
    [
        ("policy does not close", "the policy did not close within close_s (3 s)"),
        ("services do not close", "the environment's services did not close within close_s (3 s)"),
        ("a thread stays", "the process did not end within 2 s, it waits for: thread stays"),
    ],
)
def test_an_end_that_hangs_has_a_deadline(hung, what, reported_at_the_end):
    # Long before a busy machine's run has no progress for so long.
    code, reported, out = hung(what, stall_s=60)
    assert code == 76
    assert reported_at_the_end in reported
    assert "step 4/4" in reported, "all was done before"
    assert (out / "curve.png").exists()


def test_the_status_of_a_live_and_of_a_dead_run(words, tmp_path, capsys):
    out = tmp_path / "run"
    command = command_of("env awaits", words(out, stall_s=600, group_size=2, prompts=2))
    with warm_start.start(command, env=environment()) as process:
        until(lambda: reported(out, "environment"))
        assert status([str(out)]) == 10
        said = capsys.readouterr().out
        assert f"running  step 0/4  process {process.pid} on " in said
        assert "last progress" in said
        (line, *_) = [line for line in said.splitlines() if line.startswith("rollout")]
        assert line.split()[1:3] == ["train", "task"]
        assert line.split()[-2] == "environment"
        process.send_signal(signal.SIGKILL)
    assert not alive(process.pid)
    assert status([str(out)]) == 12
    said = capsys.readouterr().out
    assert said.startswith("dead  step 0/4")
    assert "the process is gone and left no reason" in said


def test_a_run_that_is_stopped_says_so(words, tmp_path, capsys):
    out = tmp_path / "run"
    command = command_of("env awaits", words(out, stall_s=600, group_size=2, prompts=2))
    with warm_start.start(command, env=environment()) as process:
        until(lambda: reported(out, "environment"))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert status([str(out)]) == 13
    assert capsys.readouterr().out.startswith("interrupted  step 0/4")


def reported(out, state):
    """Whether the status of the run in ``out`` has an episode in this state."""
    if not (out / "status.json").exists():
        return False
    return any(w["state"] == state and w["lane"] == "rollout" for w in read_state(out).waits)


def until(what):
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)

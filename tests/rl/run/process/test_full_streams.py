"""Output to a file on a full disk: the command ends with at most one line."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm_start

from rl.errors import RunFailure
from rl.run.process.command import _Log
from rl.run.process.state import RunState, read_state, write_state
from rl.run.screen import Display
from rl.status import main as status

HOME = Path(__file__).resolve().parents[4]
FULL = Path("/dev/full")
NO_ROOM = "cannot be written: [Errno 28] No space left on device"
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def run(words, stream):
    """Run a command whose ``stream`` is a file on a full disk."""
    with FULL.open("w") as full:
        return subprocess.run(
            [sys.executable, "-m", *words],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full},
            env=os.environ | {"PYTHONPATH": str(HOME)},
            text=True,
            timeout=120,
            check=False,
        )


def train(words, env, stream):
    """Likewise, for a run."""
    with FULL.open("w") as full:
        return warm_start.run(["-m", "rl.train", *words], env=env, timeout=120, **{stream: full})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the status of a run."""
    folder = tmp_path_factory.mktemp("finished")
    numbers = {"step": 1, "steps": 1, "pid": 1, "began": 0, "written": 0}
    words = {"state": "finished", "born": "", "host": "", "progress": ""}
    write_state(folder, RunState(**words, **numbers, progress_s=0, loop_s=0))
    assert status([str(folder)]) == 0
    return folder


@pytest.mark.parametrize("command", ["rl.train dry_run=true", "rl.status {folder}"])
def test_an_answer_that_cannot_be_written_is_one_line(finished, command):
    done = run(command.format(folder=finished).split(), "stdout")
    assert (done.returncode, done.stderr) == (1, f"error: stdout {NO_ROOM}\n")


def test_a_run_whose_screen_is_a_full_file_ends(words, tmp_path, plugged):
    out = tmp_path / "run"
    done = train(words(out), plugged, "stderr")
    assert done.returncode == 1
    with pytest.raises(RunFailure, match=r"stderr cannot be written: .*No space left"):
        Display("a run", 3, Full()).step(1, {})


def test_a_run_whose_answer_cannot_be_written_is_done_all_the_same(words, tmp_path, plugged):
    out = tmp_path / "run"
    done = train(words(out, steps=1), plugged, "stdout")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: stdout {NO_ROOM}"
    assert "Traceback" not in done.stderr
    assert read_state(out).state == "finished"


def test_an_error_that_cannot_be_written_is_the_exit_code(tmp_path):
    assert run(["rl.status", str(tmp_path)], "stderr").returncode == 1


class Full(io.StringIO):
    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_warning_that_cannot_be_written_shows_no_traceback(capsys):
    logger = logging.Logger("full")
    logger.addHandler(_Log(Full()))
    logger.warning("a server is looked after")
    assert capsys.readouterr().err == ""
    logger.handlers = [_Log(io.StringIO())]
    logger.warning("%d", "no number")
    assert "--- Logging error ---" in capsys.readouterr().err, "a bug is shown"

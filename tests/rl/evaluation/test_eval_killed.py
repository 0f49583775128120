"""``rl.eval`` killed by SIGKILL at random moments, and run again by the same command.

Real processes: some are killed just before they change a file, others after a random time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl.rollout.trajectory_files import read_trajectories

HOME = Path(__file__).parents[3]
CHANGES, SECONDS = 4, 3
"""Evaluations that are killed before a change of a file, and after some seconds."""
SEED = 5


@pytest.fixture(scope="module")
def evaluations(toy_model, tmp_path_factory):
    """The folder of the evaluations, and what each one printed."""
    folder = tmp_path_factory.mktemp("killed")
    other = folder / "other"
    shutil.copytree(toy_model, other)
    words = ["env=toy-copy", f"model={toy_model}", f"compare={other}", "tasks=8", "episodes=2"]
    words += ["sampling.max_tokens=3", "sampling.slots=3", "json=true"]
    script = HOME / "tests" / "helpers" / "killed_evaluations.py"
    done = subprocess.run(
        [sys.executable, str(script), *map(str, (folder, CHANGES, SECONDS, SEED)), "--", *words],
        env=os.environ | {"PYTHONPATH": f"{HOME}:{script.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, [json.loads(line) for line in done.stdout.splitlines() if line[0] == "{"]


def content(folder):
    """The result and the episodes of both models, without the names of folders."""
    found = []
    for path in (folder, folder / "compare"):
        result = json.loads((path / "result.json").read_text())
        episodes = read_trajectories(path / "trajectories.jsonl.gz")
        turns = [(e.task, e.member, e.seed, [t.action for t in e.turns]) for e in episodes]
        tokens = [[segment.token_ids for segment in e.segments] for e in episodes]
        found.append((result, turns, tokens))
    return found


def test_the_same_command_gives_the_result_of_an_uninterrupted_evaluation(evaluations):
    folder, (whole, *killed) = evaluations
    assert (whole["code"], whole["played"]) == (0, 32)
    expected = content(folder / "whole")
    assert len(killed) == CHANGES + SECONDS
    for one in killed:
        assert one["killed"] in (-signal.SIGKILL, -signal.SIGALRM, 0)
        assert one["code"] == 0, one
        assert content(Path(one["out"])) == expected, one
        for path in (Path(one["out"]), Path(one["out"]) / "compare"):
            assert not (path / "played.jsonl").exists()
            assert (path / "evaluation.png").read_bytes()[-8:-4] == b"IEND"
    # A machine may be too slow or too fast for a time, but not for a change of a file.
    assert sum(one["killed"] == -signal.SIGKILL for one in killed) >= CHANGES


def test_no_saved_episode_is_played_again(evaluations):
    _, (_, *killed) = evaluations
    for one in killed:
        assert one["again"] == 32 - one["kept"], one
        # Three episodes at a time end together.
        assert 0 <= one["ended"] - one["kept"] <= 3, one
    assert any(0 < one["kept"] < 32 for one in killed)

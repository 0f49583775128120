"""The learner is killed at any instant: the run goes on as if it had not been."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch
import warm_start
from safetensors.torch import load_file

from benchmarks.serving.task_ledger import read_ledger
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.trajectory_files import read_trajectories, write_trajectories
from rl.run.folder import read_jsonl
from rl.train import main

HOME = Path(__file__).resolve().parents[2]
SHARED = {"steps": 3, "save_every": 1, "eval__every": 2, "threads": 1, "prompts": 4}
EXACT = {"deterministic": "true", "env__max_turns": 2}
CHANGES = 400
"""More often than this no run changes a file."""


def killed(kind: str, instants: list, command: list[str]) -> list[dict]:
    """What became of runs that were killed at these instants and resumed."""
    script = HOME / "tests" / "helpers" / "killed_runs.py"
    words = [str(script), kind, *map(str, instants), "--", *command]
    env = os.environ | {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    done = warm_start.run(words, env=env, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    reported = [json.loads(line) for line in done.stdout.splitlines()]
    for run in reported:
        assert run["resumed"] == 0, f"{run}: {done.stderr[-2000:]}"
    return reported


def same(out: Path, whole: Path) -> bool:
    """Whether two runs ended with the same weights, having learned from the same episodes."""
    last = "checkpoints/step-000003/model.safetensors"
    ours, theirs = (load_file(folder / last) for folder in (out, whole))
    equal = all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for step in (1, 2, 3):
        name = f"trajectories/step-{step:06d}.jsonl.gz"
        first, second = (read_trajectories(folder / name) for folder in (out, whole))
        equal = equal and [t.segments for t in first] == [t.segments for t in second]
    return equal


@pytest.mark.parametrize("kind", [pytest.param("change", marks=pytest.mark.nightly), "second"])
def test_a_run_killed_at_any_instant_ends_with_the_same_weights(words, tmp_path, kind):
    whole = tmp_path / "whole"
    assert main(words(whole, **SHARED | EXACT)) == 0
    folders = sorted(path.name for path in (whole / "checkpoints").iterdir())
    rng = random.Random(6)
    if kind == "change":
        # The steps of a run are alike; there are 40 changes in one, and as many at the beginning.
        instants = sorted(rng.sample(range(1, 161), 10))
    else:
        instants = [round(rng.uniform(0.02, 1.2), 3) for _ in range(5)]
    reported = killed(kind, instants, words(tmp_path / "runs", **SHARED | EXACT))
    assert sum(run["killed"] < 0 for run in reported) >= len(reported) // 2, "too few were killed"
    for run in reported:
        out = Path(run["out"])
        assert same(out, whole), run
        assert [r["step"] for r in read_jsonl(out / "metrics.jsonl")] == [0, 1, 2, 3], run
        assert sorted(path.name for path in (out / "checkpoints").iterdir()) == folders, run
        assert read_ledger(out).wrong == [], run


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_killed_run_skips_no_task_and_repeats_none(words, tmp_path, staleness):
    shared = SHARED | {"steps": 6, "staleness": staleness}
    instants = sorted(random.Random(7).sample(range(40, 260), 5))
    reported = killed("change", instants, words(tmp_path / "runs", **shared))
    assert sum(run["killed"] < 0 for run in reported) >= len(reported) // 2, "too few were killed"
    for run in reported:
        ledger = read_ledger(Path(run["out"]))
        assert ledger.wrong == [], run
        assert len(ledger.learned) == 6 * 4
        # As many may begin as the next update and those after it learn from.
        assert len(ledger.ahead) == ((staleness + 1) * 4 if staleness else 0)


@pytest.fixture
def finished(words, tmp_path):
    """A run of three steps without fault, and what reads and writes a step's episodes."""
    out = tmp_path / "finished"
    assert main(words(out, **SHARED, staleness=1)) == 0

    def path(step: int) -> Path:
        return out / "trajectories" / f"step-{step:06d}.jsonl.gz"

    def write(step: int, episodes: list) -> None:
        write_trajectories(path(step), [TrajectoryGroup(episodes)])

    return out, lambda step: read_trajectories(path(step)), write


def test_a_ledger_finds_a_task_that_comes_twice_and_one_that_is_missing(finished):
    out, read, write = finished
    assert read_ledger(out).wrong == []
    write(3, [*read(2)[:4], *read(3)[4:]])
    wrong = read_ledger(out).wrong
    twice = next(n for n, step in read_ledger(out).learned.items() if step == 2)
    assert f"group {twice} entered the updates 2 and 3" in wrong
    assert any(line.startswith("groups that are missing: [") for line in wrong)


def test_a_ledger_finds_another_task_and_a_reward_of_a_failure_and_tokens_too_old(finished):
    out, read, write = finished
    episodes = read(3)
    episodes[0].task += 1
    # The record marks the episode as failed although it ended; the logged mean includes its reward.
    episodes[5].failure = "EnvFailure: it broke"
    episodes[9].segments[0].versions[-1] = 0
    write(3, episodes)
    reported = "; ".join(read_ledger(out).wrong)
    assert f"step 3: task {episodes[0].task} is not the next task of any group" in reported
    assert "step 3: an episode that failed was ended or shaped" in reported
    assert "step 3: 1 failures, 0.0 logged" in reported
    assert "step 3 learned from tokens that are 2 updates old" in reported


def test_a_ledger_finds_a_line_of_metrics_that_is_missing(finished):
    out, _, _ = finished
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert "metrics are of the steps [1, 2], not 1 to 3" in read_ledger(out).wrong

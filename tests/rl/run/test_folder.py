"""A run's folder belongs to one run, and a resumed run goes on in it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rl.run.folder
from rl.errors import UsageError
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import read_trajectories, tokens_path, write_trajectories
from rl.run.folder import RunFolder, read_jsonl, versions
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking.json_lines import JsonLines


def config(*words):
    return parse(TrainConfig, ["env=toy-copy", *words], command="c", presets=PRESETS)


@pytest.fixture
def begun(tmp_path):
    """A folder in which a run logged steps 0 to 3."""
    folder = RunFolder(tmp_path / "run", config())
    folder.write_config(config(), {"device": "cpu"})
    for step in range(4):
        JsonLines(folder.metrics_path).log(step, {"reward": step / 4})
        folder.write_trajectories(step, [])
    return folder


def test_a_folder_with_a_run_is_refused(begun):
    with pytest.raises(UsageError) as refused:
        RunFolder(begun.path, config())
    assert str(refused.value) == (
        f"{begun.path} holds a run already: continue with resume={begun.path}, or choose another "
        "out=..."
    )


@pytest.mark.parametrize(
    ("word", "reported"),
    [
        ("group_size=4", "group_size=8, not 4"),
        ("optimizer.lr=0.5", "optimizer.lr=0.0, not 0.5"),
        ("env.max_turns=2", "env.options.max_turns=1, not 2"),
        ("algo=ppo", "algo.name=grpo, not ppo"),
        ("sampling.temperature=0.7", "sampling.temperature=1.0, not 0.7"),
        ("model=other", "model=tiny, not other"),
        ("deterministic=true", "deterministic=False, not True"),
    ],
)
def test_other_settings_are_refused_by_name(begun, word, reported):
    with pytest.raises(UsageError) as refused:
        RunFolder(begun.path, config("resume=auto", word))
    message = str(refused.value)
    assert message.startswith(f"{begun.path} was started with ")
    assert reported in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "word",
    ["steps=999", "eval.every=3", "eval.tasks=5", "save_every=1", "max_seconds=9", "threads=2"],
)
def test_how_long_and_how_often_may_differ(begun, word):
    resumed = RunFolder(begun.path, config("resume=auto", word))
    assert resumed.read_metrics() == begun.read_metrics()


def test_rewind_forgets_later_steps_and_their_episodes(begun):
    begun.rewind(1)
    assert [r["step"] for r in begun.read_metrics()] == [0, 1]
    names = sorted(path.name for path in (begun.path / "trajectories").iterdir())
    assert names == [f"step-00000{n}.{end}" for n in (0, 1) for end in ("jsonl.gz", "npz")]
    begun.rewind(-1)
    assert begun.read_metrics() == []
    assert list((begun.path / "trajectories").iterdir()) == []


def evaluated(folder, *steps, tested=None):
    """Files of validations after ``steps``, of the tests, and of the learner's numbers."""
    for step in steps:
        folder.write_validation(step, [])
        folder.write_learner_columns(step, [], {"advantages": np.empty(0, np.float32)})
    folder.write_test("before", [])
    folder.write_test("after", [])
    if tested is not None:
        numbers = {f"test/{k}": 0.5 for k in ("success", "success_low", "success_high", "tasks")}
        JsonLines(folder.metrics_path).log(tested, numbers)


def of_evaluations(folder):
    names = {path.name.split(".")[0] for path in folder.trajectories.iterdir()}
    return sorted(name for name in names if not name.startswith("step"))


def test_rewind_forgets_later_evaluations_and_what_the_learner_computed(begun):
    evaluated(begun, 0, 2, 3)
    for name in (
        ".validation-000000.npz.tmp",
        ".step-000001.calls.npz.tmp",
        "step-000003.calls.npz",
        "notes.npz",
    ):
        (begun.trajectories / name).touch()
    begun.rewind(2)
    learned = sorted(path.name for path in begun.trajectories.glob("*.learner.npz"))
    assert learned == ["step-000000.learner.npz", "step-000002.learner.npz"]
    kept = ["notes", "test-before", "validation-000000", "validation-000002"]
    assert of_evaluations(begun) == kept
    begun.rewind(-1)
    assert [path.name for path in begun.trajectories.iterdir()] == ["notes.npz"]


def test_rewind_finishes_a_write_that_ended_between_two_renames(begun):
    path = begun.trajectories / "step-000000.jsonl.gz"
    write_trajectories(path, [TrajectoryGroup([Trajectory("toy-copy-v0", {}, 0, 0, 0)])])
    before = read_trajectories(path)
    tokens_path(path).replace(path.with_name(".step-000000.npz.tmp"))
    begun.rewind(1)
    assert tokens_path(path).is_file()
    assert read_trajectories(path) == before


@pytest.mark.parametrize("tested", [2, 3])
def test_the_last_test_stays_with_a_run_that_goes_on_from_its_step(begun, tested):
    evaluated(begun, tested=tested)
    begun.rewind(2)
    assert of_evaluations(begun) == ["test-after"] * (tested == 2) + ["test-before"]


def test_the_newest_validations_stay(begun):
    for step in (0, 4, 8, 12):
        begun.write_validation(step, [], keep=2)
    assert of_evaluations(begun) == ["validation-000008", "validation-000012"]


def test_rewinding_a_new_folder_makes_no_run_of_it(tmp_path):
    folder = RunFolder(tmp_path / "run", config())
    folder.rewind(-1)
    assert RunFolder(tmp_path / "run", config()).read_metrics() == []


def test_configuration_and_versions_are_written(begun):
    written = json.loads((begun.path / "config.json").read_text())
    options = {"max_turns": 1, "seed": 0, "split": "train"}
    options |= {"step_timeout_s": 120.0, "token_budget": ""}
    assert written["env"] == {"env_id": "toy-copy-v0", "options": options}
    assert written["optimizer"]["betas"] == [0.9, 0.95]
    facts = json.loads((begun.path / "versions.json").read_text())
    assert facts["device"] == "cpu"
    assert facts["packages"]["torch"]
    assert facts["python"].startswith("3.")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    expected = r"^out \(.*/file/run\) cannot be created or written: Not a directory;"
    with pytest.raises(UsageError, match=expected):
        RunFolder(tmp_path / "file" / "run", config())


def test_trajectories_read_back_and_equal_ones_make_equal_files(tmp_path):
    trajectory = Trajectory("toy-v0", {"a": 1}, 2, 3, 0, terminated=True)
    groups = [TrajectoryGroup([trajectory, dataclasses.replace(trajectory, member=1)])]
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_trajectories(first, groups)
    write_trajectories(second, groups)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "gzip's header bears no time"
    assert tokens_path(first).read_bytes() == tokens_path(second).read_bytes()
    assert read_trajectories(first) == groups[0].trajectories


def test_records_with_separators_inside_texts_stay_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\u2028y\u0085z"}\n{"a": "b"}\n', encoding="utf-8")
    assert [r["a"] for r in read_jsonl(path)] == ["x\u2028y\u0085z", "b"]


def test_versions_need_no_git(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert versions()["commit"] is None


def test_a_package_inside_a_foreign_checkout_does_not_bear_its_commit(tmp_path, monkeypatch):
    module = tmp_path / "site-packages" / "rl" / "run" / "folder.py"
    (tmp_path / ".git").mkdir()
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(rl.run.folder, "__file__", str(module))
    assert versions()["commit"] is None


def test_the_commit_is_that_of_the_checkout():
    home = Path(rl.run.folder.__file__).resolve().parents[2]
    if not (home / ".git").exists():
        pytest.skip("these sources are no checkout")
    commit = versions()["commit"]
    assert len(commit) == 40
    assert set(commit) <= set("0123456789abcdef")


def test_episodes_are_read_as_they_were_written(tmp_path):
    one = Trajectory("toy-copy-v0", {"seed": 3}, task=5, seed=7, member=0, terminated=True)
    one.turns.append(Turn("said", "heard", "stop_token", 2, {"right": 1.0}, {"right": 1.0}))
    one.segments.append(Segment([1, 2], [0, 1], [0.0, -0.5], [-1, 0], [0, 0]))
    two = Trajectory("toy-copy-v0", {}, task=6, seed=8, member=1, failure="EnvFailure: no")
    groups = [TrajectoryGroup([one]), TrajectoryGroup([two])]
    write_trajectories(tmp_path / "episodes.jsonl.gz", groups)
    assert read_trajectories(tmp_path / "episodes.jsonl.gz") == [one, two]


def test_a_folder_has_one_run_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "run", config())
    program = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'a')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(folder.path / ".lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        used = pytest.raises(UsageError, match=r"is used by another run .* another out=")
        with used, folder.held():
            pass
        other.kill()
    with folder.held():
        pass

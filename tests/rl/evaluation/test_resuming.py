"""An interrupted evaluation continues with the same episodes, and a finished one is read."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import rl.eval
from rl.evaluation.comparison import warning
from rl.evaluation.power import possible
from rl.evaluation.store import EpisodeStore
from rl.rollout.trajectory_files import read_trajectories
from rl.settings.evaluate import EvaluateConfig

COMMON = ("env=toy-copy", "sampling.max_tokens=3", "sampling.slots=24", "json=true")


@pytest.fixture
def evaluate(toy_model, capfd):
    """Run the command, and return its result and the lines of its progress."""

    def run(*words):
        code = rl.eval.main([*COMMON, f"model={toy_model}", *words])
        out, err = capfd.readouterr()
        return (json.loads(out) if out else code), err

    return run


def texts(folder):
    episodes = read_trajectories(folder / "trajectories.jsonl.gz")
    return [(e.task, e.member, [t.action for t in e.turns]) for e in episodes]


def test_an_interrupted_evaluation_continues(evaluate, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected, _ = evaluate("tasks=6", "episodes=2", f"out={whole}")
    assert not (whole / "played.jsonl").exists()
    assert (whole / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    # An evaluation that was killed after five episodes, in the middle of a line.
    cut.mkdir()
    (cut / "evaluation.json").write_bytes((whole / "evaluation.json").read_bytes())
    lines = [
        json.dumps({"task": i // 2, "member": i % 2, "episode": e.to_json()})
        for i, e in enumerate(read_trajectories(whole / "trajectories.jsonl.gz"))
    ]
    (cut / "played.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
    result, progress = evaluate("tasks=6", "episodes=2", f"out={cut}")
    assert f"5 episodes are in {cut} already" in progress
    assert result == expected
    assert texts(cut) == texts(whole)
    assert not (cut / "played.jsonl").exists()


def test_a_finished_evaluation_is_not_played_again(evaluate, tmp_path):
    first, _ = evaluate("tasks=4", "episodes=2", f"out={tmp_path}/out")
    again, progress = evaluate("tasks=4", "episodes=2", f"out={tmp_path}/out")
    assert f"all episodes are in {tmp_path}/out already" in progress
    assert again == first
    # More episodes of the same tasks: the first ones stay.
    before = texts(tmp_path / "out")
    more, progress = evaluate("tasks=5", "episodes=4", f"out={tmp_path}/out")
    assert f"8 episodes are in {tmp_path}/out already" in progress
    assert more["episodes"] == 20
    assert [e for e in texts(tmp_path / "out") if e in before] == before


def test_other_settings_or_fewer_tasks_are_refused(evaluate, tmp_path):
    evaluate("tasks=4", f"out={tmp_path}/out")
    code, error = evaluate("tasks=4", f"out={tmp_path}/out", "seed=1", "sampling.temperature=0.5")
    assert code == 1
    assert "with other settings (sampling.temperature, seed): choose another out=" in error
    code, error = evaluate("tasks=3", f"out={tmp_path}/out")
    assert code == 1
    assert "holds 1 episodes of each of 4 tasks" in error
    assert len(texts(tmp_path / "out")) == 4


def test_two_models_on_the_same_tasks(evaluate, toy_model, tmp_path):
    evaluate("tasks=8", "episodes=2", f"out={tmp_path}/base")
    result, progress = evaluate("tasks=8", "episodes=2", f"compare={tmp_path}/base")
    assert (result["compare/difference"], result["compare/p_value"]) == (0.0, 1.0)
    assert result["compare/pass@2"] == result["pass@2"]
    assert "warning: the difference of +0.000 is within noise" in progress
    result, progress = evaluate(
        "tasks=8", "sampling.temperature=0.5", f"compare={toy_model}", f"out={tmp_path}/both"
    )
    assert f"evaluation of {toy_model}, to compare" in progress
    assert result["compare/success"] == result["success"]
    assert (tmp_path / "both/compare/result.json").exists()


def test_no_impossible_difference_is_offered(evaluate, tmp_path):
    evaluate("tasks=2", f"out={tmp_path}/base")
    result, _ = evaluate("tasks=2", f"compare={tmp_path}/base", "sampling.max_tokens=2")
    assert result["detectable_difference"] is None
    assert result["compare/detectable_difference"] in (None, 0.0)
    assert "too few to show any difference with 80% power: give more tasks" in warning(
        {
            "compare/within_noise": True,
            "compare/difference": 0.5,
            "compare/p_value": 1.0,
            "compare/tasks": 2,
            "compare/detectable_difference": possible(3.9),
        }
    )


@pytest.mark.parametrize(("step", "warned"), [(0, True), (3, False)])
def test_a_best_checkpoint_that_is_the_start_is_named(evaluate, toy_model, tmp_path, step, warned):
    best = tmp_path / "run" / "checkpoints" / "best"
    shutil.copytree(toy_model, best)
    torch.save({"step": step, "success": 0.5}, best / "trainer_state.pt")
    (tmp_path / "run" / "config.json").write_text("{}")
    _, progress = evaluate("tasks=4", f"compare={tmp_path}/run")
    said = f"warning: compare ({best}): the best checkpoint of this run is its start, because no"
    assert (said in progress) == warned
    # The same for the evaluated model, and for an evaluation that was made before.
    _, progress = evaluate("tasks=4", f"model={tmp_path}/run", f"out={tmp_path}/out")
    _, progress = evaluate("tasks=4", f"model={tmp_path}/run", f"compare={tmp_path}/out")
    assert (said in progress) == (said.replace("compare", "model", 1) in progress) == warned


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["k=1,8", "episodes=4"], "k (8) must be from 1 to episodes (4)"),
        (["reward_model=x"], "reward_model (x) chooses among the episodes of a task"),
        (["compare=runs/none"], "compare (runs/none) does not exist"),
    ],
)
def test_a_wrong_setting_is_one_line(evaluate, words, line):
    code, error = evaluate("tasks=2", *words)
    assert code == 1
    assert error.splitlines()[-1].startswith(f"error: {line}")


def test_the_login_of_an_endpoint_is_not_recorded(tmp_path):
    words = {"policy": "openai", "policy.url": "http://bob:hunter2@host/v1", "policy.model": "m"}
    config = EvaluateConfig(**{"env": "math", "out": str(tmp_path), **words})
    EpisodeStore(config).start(1)
    record = tmp_path / "evaluation.json"
    assert "http://***@host/v1" in record.read_text()
    # A folder of an earlier version, which recorded the login, continues and loses it.
    record.write_text(record.read_text().replace("***", "bob:hunter2"))
    EpisodeStore(config).start(1)
    assert "hunter2" not in record.read_text()

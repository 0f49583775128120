"""What a training run records beside its episodes: the learner's numbers, and evaluations."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

import rl.learner.local
from envs.replay import main as replay_episodes
from rl.learner.registration import register
from rl.replay import main as replay
from rl.rollout.trajectory_files import read_learner_columns, read_trajectories
from rl.run.folder import read_jsonl
from rl.train import main

pytestmark = pytest.mark.usefixtures("without_charts")


def flat(episodes, name):
    """A column of all tokens of the episodes."""
    return np.concatenate([np.asarray(getattr(s, name)) for t in episodes for s in t.segments])


def recorded(out, step):
    path = out / "trajectories" / f"step-{step:06d}.jsonl.gz"
    episodes = read_trajectories(path)
    return episodes, read_learner_columns(path, len(flat(episodes, "token_ids")))


def test_a_step_records_what_the_learner_computed_about_each_token(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, steps=2, env__max_turns=2, algo__minibatches=2)) == 0
    for record in (r for r in read_jsonl(out / "metrics.jsonl") if "loss" in r):
        episodes, columns = recorded(out, record["step"])
        assert sorted(columns) == ["advantages", "entropies", "logprobs"]
        trained = flat(episodes, "loss_mask").astype(bool)
        for column in columns.values():
            assert (np.isfinite(column) == trained).all()
        zero = columns["advantages"][trained] == 0
        assert zero.mean() == pytest.approx(record["frac_zero_advantage"])
        # The local policy samples with the learner's own weights, so that every ratio is 1.
        apart = columns["logprobs"] - flat(episodes, "sampling_logprobs")
        assert np.abs(apart[trained]).max() < 1e-4
        assert 0 < columns["entropies"][trained].mean() < np.log(261)


def test_dropped_groups_have_no_numbers(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, steps=2, group_size=2, curriculum__max_draws=3)) == 0
    records = [r for r in read_jsonl(out / "metrics.jsonl") if "loss" in r]
    assert sum(record["num_groups_dropped"] for record in records) > 0
    for record in records:
        episodes, columns = recorded(out, record["step"])
        assert np.isfinite(columns["advantages"]).sum() == record["num_tokens"]
        end = 0
        for pair in zip(episodes[::2], episodes[1::2], strict=True):
            start, end = end, end + len(flat(pair, "token_ids"))
            learned = np.isfinite(columns["advantages"][start:end]).any()
            assert learned == (pair[0].reward != pair[1].reward)


def test_a_run_can_leave_the_numbers_out(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, steps=1, record_tokens="false")) == 0
    assert recorded(out, 1)[1] == {}
    # A resumed run is allowed to change it.
    assert main(words(out, steps=2, resume="auto")) == 0
    assert recorded(out, 1)[1] == {}
    assert recorded(out, 2)[1] != {}


class EarlierLearner:
    """A learner with the nine methods that every learner has."""

    def __init__(self, learner):
        self._learner = learner

    def __getattr__(self, name):
        if name == "token_record":
            raise AttributeError(name)
        return getattr(self._learner, name)


def test_a_learner_that_records_no_tokens_trains_as_well(words, tmp_path):
    async def opened(spec, host):
        return EarlierLearner(await rl.learner.local.open_local(spec, host))

    register("earlier", opened)
    out = tmp_path / "run"
    assert main(words(out, steps=1, learner="earlier")) == 0
    assert recorded(out, 1)[1] == {}


def test_a_learners_record_of_other_tokens_is_one_line(words, tmp_path, monkeypatch, capfd):
    async def short(self, version):
        none = np.empty(0, np.float32)
        return rl.learner.local.TokenRecord(none, none, none)

    monkeypatch.setattr(rl.learner.local.LocalLearner, "token_record", short)
    assert main(words(tmp_path / "run", steps=1)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: learner=local recorded other tokens: advantages has 0 numbers")


def test_episodes_of_validations_and_tests_are_recorded(words, tmp_path, capfd):
    out = tmp_path / "run"
    settings = {"steps": 3, "eval__every": 2, "eval__tasks": 5, "eval__test_tasks": 4}
    assert main(words(out, **settings)) == 0
    folder = out / "trajectories"
    records = read_jsonl(out / "metrics.jsonl")
    for step in (0, 2, 3):
        (measured,) = (
            r["eval/success"] for r in records if r["step"] == step and "eval/success" in r
        )
        episodes = read_trajectories(folder / f"validation-{step:06d}.jsonl.gz")
        assert [t.task for t in episodes] == [0, 1, 2, 3, 4]
        assert {t.env_options["split"] for t in episodes} == {"validation"}
        assert fmean(t.outcome for t in episodes) == pytest.approx(measured)
    tested = [r["test/success"] for r in records if "test/success" in r]
    for when, measured in zip(("before", "after"), tested, strict=True):
        episodes = read_trajectories(folder / f"test-{when}.jsonl.gz")
        assert {t.env_options["split"] for t in episodes} == {"test"}
        assert fmean(t.outcome for t in episodes) == pytest.approx(measured)
    assert len(list(folder.glob("validation-*.jsonl.gz"))) == 3
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capfd.readouterr()
    assert replay_episodes([str(folder / "test-after.jsonl.gz")]) == 0
    assert "4 as recorded, 0 not" in capfd.readouterr().out
    assert replay([str(out)]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

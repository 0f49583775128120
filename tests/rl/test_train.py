"""``rl.train`` from its command line to its last file, with a model of one layer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import envs
from rl.data.demonstrations import demonstrate
from rl.learner.checkpoint import load_trainer_state, save_checkpoint
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.run.trainer import Best
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe
from rl.status import main as status
from rl.train import main

TIMINGS = ("time/", "step_time", "tokens_per_second", "sandbox/")


def metrics(out):
    return read_jsonl(out / "metrics.jsonl")


def timeless(records):
    return [{k: v for k, v in r.items() if not k.startswith(TIMINGS)} for r in records]


def weights(out, checkpoint):
    return load_file(out / "checkpoints" / checkpoint / "model.safetensors")


def episodes(out, step):
    return read_trajectories(out / "trajectories" / f"step-{step:06d}.jsonl.gz")


def untrained(env_id):
    """A model of random weights and a tokenizer for an environment's texts."""
    options = envs.env_type(env_id).Options()

    async def author():
        async with envs.env_type(env_id).open_services(options) as services:
            return await demonstrate(env_id, options, services, range(8), seed=0)

    tokenizer = train_tokenizer(asyncio.run(author()), 300)
    recipe = TinyRecipe(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2)
    return new_model(tokenizer, recipe, seed=0), tokenizer


def assert_equal_weights(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("turns", "algorithm"),
    [
        (1, {"algo": "grpo", "optimizer__lr": 3e-3}),
        (
            2,
            {"algo": "ppo", "algo__epochs": 4, "algo__advantage__lam": 0.95, "optimizer__lr": 1e-3},
        ),
    ],
    ids=["grpo", "ppo"],
)
def test_reward_rises_and_the_run_leaves_its_files(words, tmp_path, capfd, turns, algorithm):
    out = tmp_path / "run"
    command = words(
        out,
        **algorithm,
        deterministic="true",
        env__max_turns=turns,
        steps=10,
        prompts=8,
        group_size=6,
        eval__tasks=24,
        eval__every=5,
        eval__test_tasks=24,
        save_every=4,
    )
    assert main(command) == 0
    stdout, stderr = capfd.readouterr()
    assert stdout == f"run: {out}\n"
    assert "step 10/10  reward" in stderr

    records = metrics(out)
    rewards = [r["reward"] for r in records if "reward" in r]
    assert len(rewards) == 10
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.2
    tests = [r["test/success"] for r in records if "test/success" in r]
    assert len(tests) == 2
    assert tests[1] > tests[0] + 0.1
    assert [r["step"] for r in records if "eval/success" in r] == [0, 5, 10]
    assert all(r["sampling/logp_difference_max"] < 1e-4 for r in records if "reward" in r)

    assert sorted(p.name for p in out.iterdir()) == [
        *(".lock", "checkpoints", "config.json", "curve.png", "ledger.png"),
        *("metrics.jsonl", "result.json", "status.json", "trajectories", "versions.json"),
    ]
    kept = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert kept == ["best", "step-000008", "step-000010"], "the newest two, and the best"
    assert len(list((out / "trajectories").iterdir())) == 10 * 3 + 3 * 2 + 2 * 2


@pytest.mark.quick
def test_deterministic_runs_are_equal_bit_for_bit(words, tmp_path):
    outs = [tmp_path / "a", tmp_path / "b"]
    for out in outs:
        assert main(words(out, deterministic="true", env__max_turns=2, eval__test_tasks=6)) == 0
    first, second = (timeless(metrics(out)) for out in outs)
    assert first == second
    assert_equal_weights(*(weights(out, "step-000004") for out in outs))
    played = [[(e.segments, e.rewards) for e in episodes(out, 4)] for out in outs]
    assert played[0] == played[1]


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(words, tmp_path, algo, monkeypatch):
    shared = {"algo": algo, "deterministic": "true", "env__max_turns": 2}
    if algo == "ppo":
        shared |= {"algo__minibatches": 2, "algo__epochs": 2}
    whole = tmp_path / "whole"
    assert main(words(whole, **shared)) == 0
    for stop in (1, 3):
        out = tmp_path / f"stopped-{stop}"
        assert main(words(out, **shared, steps=stop)) == 0
        assert main(words(out, **shared, resume="auto")) == 0
        assert_equal_weights(weights(out, "step-000004"), weights(whole, "step-000004"))
        trained = [r for r in timeless(metrics(out)) if "reward" in r]
        expected = [r for r in timeless(metrics(whole)) if "reward" in r]
        for record in (*trained, *expected):
            record.pop("eval/success", None)  # The stopped run validates at its own end as well.
        assert trained == expected


def test_a_validation_between_two_steps_changes_no_bit_of_the_second(words, tmp_path):
    """An uninterrupted run has its prompts in the cache then, a resumed one has not."""
    model = tmp_path / "model"
    save_checkpoint(model, *untrained("search-qa-v0"))
    shared = {
        **{"env": "search-qa", "model": model, "deterministic": "true", "prompts": 3},
        **{"group_size": 2, "sampling.max_tokens": 12, "sampling.slots": 4, "eval.every": 1},
        **{"eval.tasks": 4, "algo.old_logprobs": "sampling", "env.max_turns": 2},
    }
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(words(whole, **shared, steps=2)) == 0
    assert main(words(out, **shared, steps=1)) == 0
    assert main(words(out, **shared, steps=2, resume="auto")) == 0
    first, second = (episodes(folder, 2) for folder in (whole, out))
    assert len(first) == 6
    assert [t.segments for t in first] == [t.segments for t in second]
    assert_equal_weights(*(weights(folder, "step-000002") for folder in (whole, out)))


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(words, tmp_path, monkeypatch):
    import rl.run.trainer

    shared = {"deterministic": "true", "env__max_turns": 2}
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(words(whole, **shared)) == 0

    rollout = rl.run.trainer.Trainer.rollout

    async def interrupted(self, step):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return await rollout(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(rl.run.trainer.Trainer, "rollout", interrupted)
        assert main(words(out, **shared)) == 130
    assert [r["step"] for r in metrics(out)] == [0, 1, 2]
    assert [p.name for p in (out / "checkpoints").glob("step-*")] == ["step-000002"]
    assert main(words(out, **shared, resume="auto")) == 0
    assert_equal_weights(weights(out, "step-000004"), weights(whole, "step-000004"))
    assert timeless(metrics(out)) == timeless(metrics(whole))


def test_a_run_killed_before_its_first_checkpoint_starts_anew(words, tmp_path, monkeypatch):
    import rl.run.trainer

    out = tmp_path / "run"

    async def killed(self, step):
        raise MemoryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(rl.run.trainer.Trainer, "rollout", killed)
        with pytest.raises(MemoryError):
            main(words(out, steps=1))
    assert main(words(out, steps=1, resume="auto")) == 0
    assert [r["step"] for r in metrics(out)] == [0, 1], "and each step is logged once"


@pytest.mark.parametrize(
    # Saved by the step before, or saved because of the failure.
    ("algo", "save_every"),
    [("grpo", 2), ("ppo", 100)],
)
def test_a_loss_that_is_not_finite_keeps_the_good_weights(
    words, tmp_path, monkeypatch, capfd, algo, save_every
):
    import rl.run.trainer

    out = tmp_path / "run"
    learn = rl.run.trainer.Trainer.learn

    async def poisoned(self, groups):
        if self.progress.step == 2:
            groups[0].trajectories[0].turns[-1].rewards["copy"] = float("nan")
        return await learn(self, groups)

    monkeypatch.setattr(rl.run.trainer.Trainer, "learn", poisoned)
    assert main(words(out, algo=algo, save_every=save_every)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: optimizer step ")
    assert "has loss nan" in error
    assert error.endswith(f"; the episodes are in {out}/trajectories/step-000003.jsonl.gz")
    assert (out / "trajectories" / "step-000003.jsonl.gz").stat().st_size > 100
    assert [r["step"] for r in metrics(out)] == [0, 1, 2]
    kept = [p.name for p in (out / "checkpoints").glob("step-*")]
    assert kept == ["step-000002"]
    good = weights(out, "step-000002")
    assert all(tensor.isfinite().all() for tensor in good.values())
    assert load_trainer_state(out / "checkpoints" / "step-000002")["progress"]["step"] == 2

    monkeypatch.setattr(rl.run.trainer.Trainer, "learn", learn)
    assert main(words(out, algo=algo, save_every=save_every, resume="auto")) == 0
    assert [r["step"] for r in metrics(out)] == [0, 1, 2, 3, 4]


def test_a_failed_update_does_not_touch_the_checkpoint_before_it(words, tmp_path, monkeypatch):
    """With several optimizer steps in an update, weights may have moved before it failed."""
    import rl.run.trainer
    from rl.learner.seam import NonFiniteLoss

    out = tmp_path / "run"
    learn = rl.run.trainer.Trainer.learn

    async def failing(self, groups):
        if self.progress.step < 2:
            return await learn(self, groups)
        with torch.no_grad():
            next(self.runtime.learner.model.parameters()).add_(1.0)
        raise NonFiniteLoss("the loss is nan")

    monkeypatch.setattr(rl.run.trainer.Trainer, "learn", failing)
    assert main(words(out, save_every=2)) == 1
    before = tmp_path / "before"
    monkeypatch.setattr(rl.run.trainer.Trainer, "learn", learn)
    assert main(words(before, save_every=2, steps=2)) == 0
    first, second = (weights(o, "step-000002") for o in (out, before))
    assert all(torch.allclose(first[name], second[name], atol=1e-2) for name in first)


def test_poisoned_weights_end_the_run_in_one_line(words, tmp_path, monkeypatch, capfd):
    import rl.run.trainer

    out = tmp_path / "run"
    learn = rl.run.trainer.Trainer.learn

    async def poisoning(self, groups):
        update = await learn(self, groups)
        if self.learner.version == 3:
            with torch.no_grad():
                next(self.runtime.learner.model.parameters()).fill_(float("nan"))
            await self.runtime.policy.load_weights(None, self.runtime.policy.version + 1)
        return update

    monkeypatch.setattr(rl.run.trainer.Trainer, "learn", poisoning)
    assert main(words(out, save_every=2)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 24 of 24 episodes failed, more than max_failed=0.25 allows;")
    assert "not finite" in error
    assert all(t.isfinite().all() for t in weights(out, "step-000002").values())


def test_environments_without_a_success_score_are_judged_by_their_return(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, env="toy-returns", steps=1, eval__test_tasks=6)) == 0
    values = [r["eval/success"] for r in metrics(out) if "eval/success" in r]
    assert all(-3 <= value <= -2 for value in values)
    assert (out / "checkpoints" / "best" / "config.json").is_file()


def test_the_last_test_is_of_the_best_weights(words, tmp_path, capfd):
    out = tmp_path / "run"
    ruin = {"optimizer__lr": 1.0, "steps": 2, "eval__every": 1}
    assert main(words(out, **ruin, eval__tasks=24, eval__test_tasks=24)) == 0
    records = metrics(out)
    first, *others = [r["eval/success"] for r in records if "eval/success" in r]
    assert max(others) < first, "training ruined the weights"
    before, after = [r["test/success"] for r in records if "test/success" in r]
    assert after == before, "the same weights meet the same seeds"
    assert "test tasks, best weights by validation (step 0): right" in capfd.readouterr().err


def test_without_validation_tasks_the_last_weights_are_the_best(words, tmp_path, capfd):
    out = tmp_path / "run"
    command = words(out, eval__tasks=0, eval__test_tasks=24, save_every=2)
    assert main(command) == 0
    assert "test tasks, last weights (step 4): right" in capfd.readouterr().err
    assert not any("eval/success" in record for record in metrics(out))
    assert_equal_weights(weights(out, "best"), weights(out, "step-000004"))
    assert load_trainer_state(out / "checkpoints" / "best")["step"] == 4
    # A resumed run that validates again chooses among its own.
    assert main([*command, "eval.tasks=6", "steps=6", "resume=auto"]) == 0
    assert load_trainer_state(out / "checkpoints" / "best")["success"] >= 0


def test_no_two_groups_of_a_run_share_a_seed(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, steps=3)) == 0
    groups = []
    for path in sorted((out / "trajectories").glob("step-*.jsonl.gz")):
        episodes = read_trajectories(path)
        groups += [episodes[i : i + 4] for i in range(0, len(episodes), 4)]
    assert len(groups) == 3 * 6
    assert [{e.seed for e in group} for group in groups] == [{group[0].seed} for group in groups]
    assert len({group[0].seed for group in groups}) == 18
    assert sorted(group[0].task for group in groups) == sorted({g[0].task for g in groups})


def test_max_seconds_ends_a_run_as_its_last_step_would(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, max_seconds=1e-6, steps=1000)) == 0
    reported = (
        "max_seconds (1e-06) ended it after step 1 of 1000: resume=auto and a larger max_seconds "
        "go on"
    )
    assert reported in capfd.readouterr().err.splitlines()
    assert status([str(out)]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[0].startswith("finished  step 1/1000  process ")
    assert said[1:] == [reported]
    assert [r["step"] for r in metrics(out)] == [0, 1]
    assert (out / "checkpoints" / "step-000001").is_dir()


def test_a_finished_run_is_refused_and_a_longer_one_goes_on(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    capfd.readouterr()
    assert main(words(out, steps=2)) == 1
    assert capfd.readouterr().err == (
        f"error: {out} holds a run already: continue with resume={out}, or choose another out=...\n"
    )
    assert main(words(out, steps=2, resume="auto")) == 0
    assert "resumed after step 1\n" in capfd.readouterr().err
    assert [r["step"] for r in metrics(out) if "reward" in r] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"model": "/no/such/folder"}, "error: model (/no/such/folder) "),
        ({"device": "abacus"}, "error: device (abacus) must be auto, cpu, cuda or cuda:N, "),
        ({"device": "cuda:99"}, "error: device (cuda:99) must be auto, cpu, cuda or cuda:N, "),
        (
            {"context_length": 4096},
            "error: context_length (4096) must be at most the model's window, 48 tokens",
        ),
        ({"out": ""}, "error: out is empty: name a folder"),
        ({"out": "{nothing}"}, "error: out ({nothing}) may hold {env}, {algo} and {seed}"),
    ],
)
def test_a_users_mistake_is_one_line(words, tmp_path, monkeypatch, capfd, settings, line):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(words(**{"out": tmp_path / "run"} | settings)) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith(line)
    assert [line for line in lines if line.startswith(("error", "Traceback"))] == lines[-1:]


def test_a_folder_without_a_tokenizer_is_one_line(words, toy_model, tmp_path, capfd):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((toy_model / name).read_bytes())
    assert main(words(tmp_path / "run", model=bare)) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert str(bare) in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_a_dry_run_prints_the_configuration_and_touches_nothing(words, tmp_path, capsys):
    assert main([*words(tmp_path / "run"), "--dry-run"]) == 0
    assert "steps=4\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_progress_starts_below_every_return():
    assert Best().success < -1e300


def test_ctrl_c_of_a_process_leaves_a_checkpoint_to_resume_from(words, tmp_path, plugged):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "rl.train", *words(out, steps=100_000)]
    with subprocess.Popen(
        command, env=plugged, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (out / "trajectories" / "step-000002.jsonl.gz").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = stderr.splitlines()
    assert "stopping cleanly; Ctrl-C once more stops at once" in lines
    assert "Traceback" not in stderr
    done = metrics(out)[-1]["step"]
    assert lines[-1] == f"stopped after step {done}; continue with python -m rl.train resume={out}"
    saved = out / "checkpoints" / f"step-{done:06d}"
    assert load_trainer_state(saved)["progress"]["step"] == done
    # The rest in this process, which is faster than to start another one.
    assert main(words(out, steps=done + 1, resume="auto")) == 0
    assert [r["step"] for r in metrics(out) if "reward" in r] == list(range(1, done + 2))
    assert json.loads((out / "config.json").read_text())["env"]["env_id"] == "toy-copy-v0"

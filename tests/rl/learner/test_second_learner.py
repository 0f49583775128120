"""A learner in another process trains the main job through the same seam as the local one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from piped_learner import open_piped
from safetensors.torch import load_file
from transformers import AutoTokenizer

import rl.run.trainer
from agents.torch_thread import TorchThread
from rl.credit.algorithms import ALGORITHMS
from rl.errors import UsageError
from rl.learner.checkpoint import load_trainer_state
from rl.learner.local import open_local
from rl.learner.memory.offloading import Offloader
from rl.learner.registration import check_learner, open_of, register
from rl.learner.seam import Experience, Host, LearnerLost, LearnerSpec, TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.run.folder import read_jsonl
from rl.settings.lora import LoraConfig
from rl.train import main
from tools.registry import UnknownNameError

register("piped", open_piped)
TIMINGS = ("time/", "step_time", "tokens_per_second")
PPO = {"algo": "ppo", "algo.minibatches": 2, "lora.rank": 2}
SETTINGS = {"deterministic": "true", "threads": 1, "env.max_turns": 2}


def weights(out, step):
    (path,) = (out / "checkpoints" / f"step-{step:06d}").glob("*.safetensors")
    return load_file(path)


def timeless(out):
    records = read_jsonl(out / "metrics.jsonl")
    return [{k: v for k, v in r.items() if not k.startswith(TIMINGS)} for r in records]


def assert_same(first, second):
    """Equal nested values, tensors bit for bit."""
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


@pytest.mark.parametrize("algorithm", [{"algo": "grpo", "algo.kl.coef": 0.1}, PPO])
def test_it_trains_and_resumes_as_the_local_one_does(words, tmp_path, algorithm):
    if "lora.rank" in algorithm:
        pytest.importorskip("peft")
    local, piped = tmp_path / "local", tmp_path / "piped"
    shared = SETTINGS | algorithm | {"steps": 3}
    assert main(words(local, **shared)) == 0
    # Stopped after the second step, and resumed in a new process.
    assert main(words(piped, **shared | {"steps": 2, "learner": "piped"})) == 0
    assert main(words(piped, **shared, learner="piped", resume="auto")) == 0
    assert_same(weights(local, 3), weights(piped, 3))
    first, second = (load_trainer_state(o / "checkpoints" / "step-000003") for o in (local, piped))
    for step in (1, 2, 3):
        name = f"trajectories/step-{step:06d}.learner.npz"
        assert (local / name).read_bytes() == (piped / name).read_bytes()
    for name in ("learner", "policy_version", "curriculum"):
        assert_same(first[name], second[name])
    ours, theirs = ([r for r in timeless(o) if "reward" in r] for o in (local, piped))
    for record in (*ours, *theirs):
        record.pop("eval/success", None)  # The stopped run validates at its own end as well.
    assert ours == theirs


def test_it_is_chosen_by_its_entry_point(words, tmp_path, plugged):
    points = tmp_path / "site" / "toys-1.0.dist-info" / "entry_points.txt"
    points.write_text(
        points.read_text() + "[turnwise.learners]\npiped = piped_learner:open_piped\n"
    )
    command = [sys.executable, "-m", "rl.train", *words(tmp_path / "run", steps=1, learner="piped")]
    done = subprocess.run(
        command, env=plugged, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_unknown_name_is_refused_with_the_known_names(words, tmp_path, capfd):
    assert main(words(tmp_path, learner="locl")) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert "unknown learner 'locl'. Did you mean 'local'? Known: " in line
    with pytest.raises(UnknownNameError):
        check_learner("remote")


def test_a_learner_that_fails_to_import_is_one_line():
    register("broken", "no_such_module:open")
    with pytest.raises(UsageError, match=r"learner .broken., .* fails to import"):
        open_of("broken")


def test_a_run_whose_learner_is_killed_ends_in_one_line(words, tmp_path, monkeypatch, capfd):
    rollout = rl.run.trainer.Trainer.rollout

    async def killing(self, step):
        if step == 2:
            os.kill(self.learner.process.pid, signal.SIGKILL)
        return await rollout(self, step)

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    assert main(words(tmp_path / "run", learner="piped", **SETTINGS)) == 1
    assert capfd.readouterr().err.splitlines()[-1] == "error: the learner's process ended"


@asynccontextmanager
async def opened(opening, folder, **changes):
    training = TrainingSpec(ALGORITHMS["grpo"], OptimizerConfig(lr=1e-2), 1.0, 4096)
    spec = LearnerSpec(
        model=str(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        device="cpu",
        dtype="float32",
        lora=LoraConfig(),
        seed=0,
        training=training,
    )
    thread, seen = TorchThread(), []
    learner = await opening(replace(spec, **changes), Host(thread, lambda: seen.append(1)))
    learner.seen = seen
    try:
        yield learner
    finally:
        await learner.close()
        await thread.close()


async def tensors(learner):
    handle = await learner.weights(learner.version)
    return {name: x.clone() for name, x in (await handle.tensors()).items()}


@pytest.mark.parametrize("opening", [open_local, open_piped])
async def test_a_repeated_call_is_recognised_by_its_version(opening, toy_model, groups, tmp_path):
    async with opened(opening, toy_model) as learner:
        assert (learner.facts.family, learner.facts.context_window) == ("qwen3", 48)
        initial = await tensors(learner)
        metrics = await learner.update(Experience(groups), 1)
        assert learner.seen, "progress is reported"
        once = await tensors(learner)
        record = await learner.token_record(1)
        assert await learner.update(Experience(groups), 1) == metrics
        np.testing.assert_equal(astuple(await learner.token_record(1)), astuple(record))
        assert await learner.token_record(0) is None, "made by no update"
        assert_same(await tensors(learner), once)
        assert learner.version == 1
        with pytest.raises(ValueError, match=r"version \(3\) must be 2: the learner has 1"):
            await learner.update(Experience(groups), 3)
        with pytest.raises(ValueError, match=r"version \(0\) is not the learner's, 1"):
            await learner.weights(0)
        assert any(not torch.equal(once[name], initial[name]) for name in once)

        scores = await learner.score([5, 6, 7], 0.7)
        await learner.save(tmp_path / "c", {"mine": 7}, resumable=True)
        await learner.update(Experience(groups), 2)
        assert await learner.score([5, 6, 7], 0.7) != scores
        assert await learner.load(tmp_path / "c") == {"mine": 7}
        assert (learner.version, await learner.score([5, 6, 7], 0.7)) == (1, scores)
        assert await learner.load(tmp_path / "c", 9) == {}
        assert learner.version == 9
        assert await learner.token_record(9) is None
        await learner.offload()
        await learner.onload()
        await learner.update(Experience(groups), 10)


async def test_an_update_starts_from_loaded_weights(toy_model, groups, tmp_path):
    """The float32 copies of bfloat16 weights are loaded too: a step of 1e-9 changes no weight."""
    still = TrainingSpec(ALGORITHMS["grpo"], OptimizerConfig(lr=1e-9), 1.0, 4096)
    async with opened(open_local, toy_model, dtype="bfloat16") as moved:
        await moved.update(Experience(groups), 1)
        await moved.save(tmp_path / "c")
        expected = await tensors(moved)
    async with opened(open_local, toy_model, dtype="bfloat16", training=still) as learner:
        await learner.load(tmp_path / "c", 4)
        assert_same(await tensors(learner), expected)
        await learner.update(Experience(groups), 5)
        assert_same(await tensors(learner), expected)


async def test_a_checkpoint_loaded_while_the_policy_has_the_device_is_offloaded(
    toy_model, groups, tmp_path, monkeypatch
):
    """A resumed run loads its checkpoint after the policy took the memory."""
    moves = []
    offload = Offloader.offload
    monkeypatch.setattr(Offloader, "offload", lambda self: moves.append("out") or offload(self))
    async with opened(open_local, toy_model, dtype="bfloat16") as learner:
        await learner.update(Experience(groups), 1)
        await learner.save(tmp_path / "c", resumable=True)
        learner._offload()  # A learner on a CPU ignores the verb.
        await learner.load(tmp_path / "c")
        assert moves == ["out", "out"]
        learner._onload()
        await learner.load(tmp_path / "c")
        assert moves == ["out", "out"]
        await learner.update(Experience(groups), 2)


async def test_a_learner_without_training_is_not_trained(toy_model, groups):
    async with opened(open_local, toy_model, training=None) as learner:
        with pytest.raises(ValueError, match="opened without training"):
            await learner.update(Experience(groups), 1)


async def test_a_learner_that_hangs_is_lost_at_its_deadline(toy_model, groups):
    async with opened(open_piped, toy_model) as learner:
        learner.deadline_s = 1.0
        os.kill(learner.process.pid, signal.SIGSTOP)
        with pytest.raises(LearnerLost, match="did not update within 1 s"):
            await learner.update(Experience(groups), 1)
        learner.deadline_s = 60.0
        with pytest.raises(LearnerLost, match="ended"):
            await learner.score([1, 2], 1.0)


async def test_a_model_that_does_not_exist_is_refused_before_the_first_call(tmp_path, toy_model):
    async def opening(spec, host):
        return await open_piped(replace(spec, model=str(tmp_path)), host)

    with pytest.raises(ValueError, match=r"has no config\.json"):
        async with asyncio.timeout(300), opened(opening, toy_model):
            pass

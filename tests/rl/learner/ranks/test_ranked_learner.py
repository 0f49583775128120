"""A run whose learner is several processes: it trains, loses a rank, and continues."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from ranked_cases import CASES, Case, episodes, save_models
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel

import rl.run.trainer
from agents.torch_thread import TorchThread
from rl.learner.local import LocalLearner, open_local
from rl.learner.ranks.learner import check_ranks, open_ranks
from rl.learner.ranks.world import World
from rl.learner.seam import Experience, Host, LearnerLost
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.run.folder import read_jsonl
from rl.settings.lora import LoraConfig
from rl.train import main

pytestmark = pytest.mark.slow

SETTINGS = {"env.max_turns": 2, "threads": 1, "steps": 3, "save_every": 1}
TIMINGS = ("time/", "step_time", "tokens_per_second")


def host(seen):
    return Host(TorchThread(1), lambda: seen.append(1))


async def test_it_speaks_the_learners_protocol_and_ends_with_its_ranks(tmp_path):
    save_models(tmp_path)
    spec, seen = CASES["grpo"].spec(tmp_path), []
    learner = await open_ranks(spec, host(seen), 2, 60.0)
    alone = await open_local(spec, host([]))
    try:
        assert learner.facts == alone.facts
        groups = Experience(episodes(CASES["grpo"]))
        metrics = await learner.update(groups, 1)
        assert metrics == pytest.approx(await alone.update(groups, 1), rel=1e-5, abs=1e-5)
        assert await learner.update(groups, 1) == metrics, "a repeated call trains nothing"
        assert seen, "progress is reported"
        with pytest.raises(ValueError, match=r"version \(3\) must be 2: the learner has 1"):
            await learner.update(groups, 3)
        with pytest.raises(ValueError, match=r"version \(0\) is not the learner's, 1"):
            await learner.weights(0)
        ours, theirs = await learner.weights(1), await alone.weights(1)
        found, expected = await ours.tensors(), await theirs.tensors()
        for name, x in expected.items():
            torch.testing.assert_close(found[name], x, atol=1e-5, rtol=1e-5)
        complete = await ours.tensors(complete=True)
        assert complete.keys() == (await theirs.tensors(complete=True)).keys()
        assert await learner.tolerance(0) == await alone.tolerance(0)
        await learner.offload()
        await learner.onload()
    finally:
        await learner.close()
    for pid in learner.processes.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    await learner.close()
    with pytest.raises(LearnerLost, match="closed"):
        await learner.score([1, 2], 1.0)


@pytest.mark.parametrize(("model", "num_kept"), [("model", 0), ("routed", 2)])
async def test_bfloat16_is_near_one_process_and_its_checkpoint_continues_exactly(
    tmp_path, model, num_kept
):
    """Ranks keep float32 weights, so what a checkpoint's bfloat16 weights lack is saved as well.

    A mixture's router computes in float32.
    """
    save_models(tmp_path)
    case = Case(dtype="bfloat16", model=model)
    spec, groups = case.spec(tmp_path), Experience(episodes(case))
    learner, alone = await open_ranks(spec, host([]), 2, 120.0), await open_local(spec, host([]))
    try:
        assert learner.facts == alone.facts
        ids = list(range(2, 22)) * 6
        assert await learner.score(ids, 1.0) == await alone.score(ids, 1.0)
        ours, theirs = await learner.update(groups, 1), await alone.update(groups, 1)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.02)
        assert ours["entropy"] == pytest.approx(theirs["entropy"], rel=0.01)
        found = await (await learner.weights(1)).tensors()
        kept = {name for name, x in found.items() if x.dtype == torch.float32}
        assert len(kept) == num_kept and all(".gate." in name for name in kept)
        assert {x.dtype for name, x in found.items() if name not in kept} == {torch.bfloat16}
        await learner.save(tmp_path / "c", resumable=True)
        written = load_file(tmp_path / "c" / "model.safetensors")
        assert {name for name, x in written.items() if x.dtype == torch.float32} == kept
        assert AutoConfig.from_pretrained(tmp_path / "c").dtype == torch.bfloat16
        second = await learner.update(groups, 2)
        await learner.load(tmp_path / "c")
        assert await learner.update(groups, 2) == second
    finally:
        await learner.close()


async def test_a_rank_that_ends_while_it_writes_is_lost_and_leaves_the_former_checkpoint(tmp_path):
    """It is no full disk: new ranks continue from the former checkpoint."""
    save_models(tmp_path)
    spec, groups = CASES["grpo"].spec(tmp_path), Experience(episodes(CASES["grpo"]))
    learner = await open_ranks(spec, host([]), 2, 120.0)
    try:
        await learner.update(groups, 1)
        await (await learner.start_saving(tmp_path / "c", {"mine": 1}))
        await learner.update(groups, 2)
        written = await learner.start_saving(tmp_path / "c", {"mine": 2})
        os.kill(learner.processes.pids[1], signal.SIGSTOP)
        await asyncio.sleep(0.3)
        os.kill(learner.processes.pids[1], signal.SIGKILL)
        with pytest.raises(LearnerLost):
            await written
    finally:
        await learner.close()
    again = await open_ranks(spec, host([]), 2, 120.0)
    try:
        state = await again.load(tmp_path / "c")
        # The second, if it was complete before the rank stopped.
        assert (state["mine"], again.version) in ((1, 1), (2, 2))
    finally:
        await again.close()


async def test_ranks_that_hang_are_lost_at_their_deadline(tmp_path):
    save_models(tmp_path)
    learner = await open_ranks(CASES["grpo"].spec(tmp_path), host([]), 2, 120.0)
    try:
        learner.processes.timeout_s = 1.0
        for pid in learner.processes.pids:
            os.kill(pid, signal.SIGSTOP)
        message = r"ranks made no progress with score for 1 s \(learner\.timeout_s\)"
        with pytest.raises(LearnerLost, match=message):
            await learner.score([1, 2], 1.0)
    finally:
        await learner.close()


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("lora", lambda: LoraConfig(rank=2, base_bits=4), r"lora\.base_bits \(4\) must be 0"),
        ("training", lambda: None, r"learner\.ranks \(2\) must be 1 without training"),
        (
            "optimizer",
            lambda: OptimizerConfig(state_bits=8),
            r"optimizer\.state_bits \(8\) must be 32 with learner\.ranks=2",
        ),
        (
            "memory",
            lambda: MemoryConfig(offload_scorers=True),
            r"memory\.offload_scorers \(True\) must be False",
        ),
    ],
)
def test_settings_that_ranks_cannot_have_are_one_line(tmp_path, key, change, message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    spec, value = Case().spec(tmp_path), change()
    if key in ("optimizer", "memory"):
        key, value = "training", replace(spec.training, **{key: value})
    with pytest.raises(ValueError, match=message):
        check_ranks(replace(spec, **{key: value}), 2)


def lines(out):
    records = [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    return [{k: v for k, v in r.items() if not k.startswith(TIMINGS)} for r in records]


def test_a_run_that_loses_a_rank_continues_and_learns_the_same(words, tmp_path, monkeypatch, capfd):
    """Each step is in the metrics once, and the weights are those of a run without a loss."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ranked = SETTINGS | {"learner.ranks": 2}
    assert main(words(whole, **ranked)) == 0
    rollout, killed = rl.run.trainer.Trainer.rollout, []

    async def killing(self, step):
        groups = await rollout(self, step)
        if step == 3 and not killed:
            killed.append(self.learner.processes.pids[1])
            os.kill(killed[0], signal.SIGKILL)
        return groups

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    began = time.monotonic()
    assert main(words(broken, **ranked)) == 0
    assert time.monotonic() - began < 300
    said = capfd.readouterr().err
    assert "rank 1 of the learner ended with exit code -9; new ranks continue" in said
    assert [r["step"] for r in lines(broken)] == [1, 2, 3]
    for mine, theirs in zip(lines(broken), lines(whole), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert mine["reward"] == theirs["reward"]
    assert json.loads((broken / "result.json").read_text())["steps"] == 3
    # One process continues the ranks' run, whose settings need not be repeated.
    assert main([f"resume={broken}", "steps=4", "learner.ranks=1"]) == 0
    assert [r["step"] for r in lines(broken)] == [1, 2, 3, 4]


def test_a_run_without_restarts_ends_in_one_line(words, tmp_path, monkeypatch, capfd):
    async def killing(self, step):
        os.kill(self.learner.processes.pids[0], signal.SIGKILL)
        return await rollout(self, step)

    rollout = rl.run.trainer.Trainer.rollout
    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    settings = SETTINGS | {"learner.ranks": 2, "learner.restarts": 0}
    assert main(words(tmp_path / "run", **settings)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "error: rank 0 of the learner ended with exit code -9"


def test_a_scheduler_that_stops_run_and_ranks_starts_no_new_ones(
    words, tmp_path, monkeypatch, capfd
):
    """Slurm's requeue stops all processes of a job, and new ranks would never come."""
    rollout = rl.run.trainer.Trainer.rollout

    async def stopping(self, step):
        groups = await rollout(self, step)
        if step == 3:
            # The loop learns of the signal after this step of the coroutine.
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(self.learner.processes.pids[0], signal.SIGKILL)
        return groups

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", stopping)
    out = tmp_path / "run"
    assert main(words(out, **SETTINGS, **{"learner.ranks": 2})) == 130
    said = capfd.readouterr().err
    assert "new ranks continue" not in said
    assert said.splitlines()[-1] == (
        "error: rank 0 of the learner ended with exit code -9, after the run was asked to stop: "
        "resume=auto continues from the newest checkpoint"
    )
    monkeypatch.undo()
    assert main(words(out, **SETTINGS, **{"learner.ranks": 2, "resume": "auto"})) == 0
    assert [r["step"] for r in lines(out)] == [1, 2, 3]


@pytest.mark.parametrize("free", [10_000, 100_000_000])
def test_a_rank_loads_the_model_on_the_host(tmp_path, monkeypatch, free):
    """Its parts then move to the GPU, or all of it if there is much room; this machine has none."""
    moved = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    move = PreTrainedModel.to

    def to(model, *args, **options):
        if options.get("device") == torch.device("cuda:1"):
            moved.append(1)
            return model
        return move(model, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "to", to)

    class OneOfTwo(World):
        size = 2

    save_models(tmp_path)
    spec = replace(CASES["grpo"].spec(tmp_path), device="cuda:1", dtype="bfloat16", training=None)
    learner = LocalLearner(spec, host([]), OneOfTwo())
    assert {p.device.type for p in learner.model.parameters()} == {"cpu"}
    assert {p.dtype for p in learner.model.parameters()} == {torch.bfloat16}
    assert (learner.facts.device, learner.facts.dtype) == ("cuda:1", "bfloat16")
    assert len(moved) == (free > 10_000)

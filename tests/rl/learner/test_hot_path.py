"""Updates on a GPU that is pretended: one upload, no stall, and the gradients of a CPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from pretend_gpu import moved, pretended
from small_learner import VOCABULARY, build_group, build_model

from agents.segment import Segment
from rl.credit.algorithms import ALGORITHMS
from rl.learner.lora import add_adapter
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.packing import attention
from rl.settings.lora import LoraConfig

SHAPES = [
    [[(18, 3, 1.0), (2, 2, 0.0)], [(18, 4, 0.0)], [(18, 3, 1.0)]],
    [[(3, 5, 0.0)], [(9, 1, 1.0), (1, 3, 0.0)], [(3, 5, 0.5)]],
]
"""Two groups; the first shares a prompt of 18 tokens."""
MICRO_BATCH_TOKENS = 20


def played(*, supports=False):
    groups = [build_group(shapes, seed=seed) for seed, shapes in enumerate(SHAPES)]
    prompt = groups[0].trajectories[0].segments[0].token_ids[:18]
    drawn = random.Random(0)
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.outcome = float(trajectory.member == 0)
            (segment,) = trajectory.segments
            if group is groups[0]:
                trajectory.segments = [segment_with(segment, prompt)]
            if supports:
                kept = [sorted({t, drawn.randrange(VOCABULARY)}) for t in segment.token_ids]
                pairs = zip(kept, segment.loss_mask, strict=True)
                trajectory.segments[0].supports = [ids if mask else [] for ids, mask in pairs]
    return groups


def segment_with(segment, prompt):
    return Segment(
        token_ids=prompt + segment.token_ids[len(prompt) :],
        loss_mask=segment.loss_mask,
        sampling_logprobs=segment.sampling_logprobs,
        versions=segment.versions,
        turn_ids=segment.turn_ids,
    )


def texts():
    row = {"loss_mask": [0, 1, 1], "sampling_logprobs": [0.0] * 3, "versions": [-1] * 3}
    return [Segment(token_ids=[2, 3, 4 + i], turn_ids=[0] * 3, **row) for i in range(4)]


def updater_of(model, row, options):
    return Updater(
        model,
        row,
        OptimizerConfig(lr=1e-3),
        max_tokens_per_micro_batch=MICRO_BATCH_TOKENS,
        **options,
    )


def scoring_passes(updater):
    """Passes over all episodes before the optimizer steps."""
    row = updater.algorithm
    of_phi = {"none": 0, "head": 2, "implicit": 3}[row.token_rewards.kind]
    return row.uses_old_scores + (updater.reference is not None) + of_phi


@pytest.fixture(autouse=True)
def accepted(monkeypatch):
    """Skip the comparison of packed and padded hidden states, which other tests cover."""
    monkeypatch.setattr(attention, "_difference", lambda _: None)


def check(row, monkeypatch, *, adapter=False, supports=False, ptx=(), **options):
    """Compare an update on the GPU with the CPU's, and count copies and waits."""

    def built():
        model = build_model(layers=1)
        if adapter:
            add_adapter(model, LoraConfig(rank=2), "somewhere", 0)
        return model

    groups = played(supports=supports)
    expected = updater_of(built(), row, options).update(groups, ptx)
    with pretended(monkeypatch) as record:
        updater = updater_of(moved(built()), row, options)
        scored = []
        updater.report_progress(lambda: scored.append(1))
        record.clear()
        metrics = updater.update(groups, ptx)
    passes = scoring_passes(updater)
    assert not record.mixed, record.mixed
    assert not record.stalls, record.stalls
    assert len(scored) >= 3
    assert record.uploads == passes + 1
    # Two numbers before each optimizer step and one after it, and the metrics at the end. An
    # update of several steps also copies the weights before the first one.
    steps = int(metrics["optimizer_steps"])
    assert record.reads == passes + 2 * steps + 1 + (steps > 1)
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_an_update_is_one_upload_without_a_stall(name, monkeypatch):
    check(ALGORITHMS[name], monkeypatch)


GRPO, PPO = ALGORITHMS["grpo"], ALGORITHMS["ppo"]


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo"])
def test_rows_that_are_padded(name, monkeypatch):
    check(ALGORITHMS[name], monkeypatch, packing=False)


def test_a_reference_model(monkeypatch):
    check(GRPO.changed({"kl.coef": 0.1, "entropy_coef": 0.01}), monkeypatch)


def test_a_critic_of_its_own_with_several_steps(monkeypatch):
    check(PPO.changed({"value.critic": "model", "epochs": 2, "minibatches": 2}), monkeypatch)


def test_an_adapter_whose_base_is_the_reference(monkeypatch):
    pytest.importorskip("peft")
    check(GRPO.changed({"kl.coef": 0.1}), monkeypatch, adapter=True)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_activation_checkpointing(mode, monkeypatch):
    check(GRPO, monkeypatch, memory=MemoryConfig(activation_checkpointing=mode))


def test_limited_supports_and_corrections(monkeypatch):
    row = GRPO.changed({"correction.kind": "tis", "correction.drop_divergence": 0.1})
    check(row, monkeypatch, supports=True)


def test_texts_beside_the_episodes(monkeypatch):
    check(replace(GRPO, ptx_coef=0.5), monkeypatch, ptx=texts())


def test_a_loss_that_waits_is_found(monkeypatch):
    """The record sees what it must: one number read in the loss, and one tensor left behind."""
    from rl.credit import steps

    plain = steps.policy_objective

    def waits(algorithm, scores, *rest):
        scores.logprobs.max().item()
        return plain(algorithm, scores, *rest)

    monkeypatch.setattr(steps, "policy_objective", waits)
    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        check(GRPO, monkeypatch)
    monkeypatch.setattr(
        steps, "policy_objective", lambda *given: plain(*given[:3], torch.ones(1), *given[4:])
    )
    with pytest.raises(AssertionError, match="mul "):
        check(GRPO, monkeypatch)

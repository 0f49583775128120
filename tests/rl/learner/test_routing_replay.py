"""Routing replay: the learner computes each token with the sampler's experts."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranked_cases import CASES, episodes, opened, save_models
from small_learner import VOCABULARY, build_mixture

from agents.completion import Completion, FinishReason, SamplingParams
from agents.local.forward.routers import Recording, Replay, using
from agents.segment import Segment
from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.errors import RunFailure
from rl.learner.local import replay_routing
from rl.learner.memory.transfers import uploaded
from rl.learner.scoring import ScoringModel
from rl.learner.seam import Experience
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn

OPTIMIZER = OptimizerConfig(lr=1e-2)


def changed(model, by):
    """A copy whose weights differ a little, as those of a sampler with older weights do."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += by * torch.randn_like(parameter)
    return other


@torch.no_grad()
def sampled(sampler, count=12, length=24, prompt_length=18):
    """Groups of two episodes with a common prompt, with the sampler's scores and experts."""
    drawn = np.random.default_rng(0)
    groups = []
    for number in range(count // 2):
        prompt, members = drawn.integers(2, VOCABULARY, prompt_length).tolist(), []
        for member in range(2):
            ids = [*prompt, *drawn.integers(2, VOCABULARY, length).tolist()]
            recording = Recording()
            with using(recording):
                logits = sampler(torch.tensor([ids[:-1]]), use_cache=False).logits[0]
            logprobs = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            experts = torch.stack([recording.experts[layer] for layer in range(2)], 1)
            segment = Segment()
            segment.append_context(prompt, 0)
            segment.append_completion(
                Completion(
                    tuple(ids[prompt_length:]),
                    tuple(logprobs[prompt_length - 1 :].tolist()),
                    (0,) * length,
                    FinishReason.LENGTH,
                    None,
                    experts.numpy().astype(np.uint8),
                ),
                0,
            )
            turns = [Turn("a", "", "length", length, rewards={"r": float(member)})]
            members.append(
                Trajectory("toy-v0", {}, number, 0, member, [segment], turns, terminated=True)
            )
        groups.append(TrajectoryGroup(members))
    return groups


def scored(model, batch, *, replay, packing):
    """The learner's log-probabilities, and the experts that it used for all computed tokens."""
    scoring = ScoringModel(copy.deepcopy(model), packing=packing)
    if replay:
        replay_routing(scoring)
    return scoring.score_tokens(batch, 4096).logprobs


@pytest.mark.parametrize("packing", [False, True])
def test_the_mismatch_with_a_sampler_in_bfloat16_falls(packing):
    """Where rounding changes a choice of experts, a log-probability moves by half a nat."""
    learner = build_mixture()
    replay_routing(ScoringModel(learner))
    batch = Batch.from_groups(sampled(copy.deepcopy(learner).to(torch.bfloat16), count=40))
    off = [
        (scored(learner, batch, replay=replay, packing=packing) - batch.sampling_logprobs).abs()
        for replay in (False, True)
    ]
    assert off[0].max() > 0.5
    assert off[1].max() < 0.1
    assert off[1].mean() < 0.9 * off[0].mean()


@pytest.mark.parametrize("packing", [False, True])
def test_every_token_uses_the_samplers_experts(packing, monkeypatch):
    learner = build_mixture()
    scoring = ScoringModel(learner, packing=packing)
    replay_routing(scoring)
    batch = Batch.from_groups(sampled(changed(learner, 0.02)))
    used = {}

    class Watched(Replay):
        def select(self, layer, scores, chosen):
            found = super().select(layer, scores, chosen)
            used[layer] = found.indices
            return found

    monkeypatch.setattr("rl.learner.scoring.Replay", Watched)
    count = 0
    for micro in uploaded(scoring.micro_batches(batch, 4096), torch.device("cpu")):
        with torch.no_grad():
            scoring.score(micro)
        experts = micro.experts.long()
        known = (experts >= 0).all(-1).all(-1)
        count += int(known.sum())
        for layer in range(2):
            assert torch.equal(used[layer][known], experts[known, layer])
    # A packed row computes a group's prompt once.
    assert count == 12 * 41 - (6 * 18 if packing else 0)


@pytest.mark.parametrize(
    ("packing", "memory"),
    [
        (True, MemoryConfig(activation_checkpointing="off")),
        (False, MemoryConfig(activation_checkpointing="on")),
        (True, MemoryConfig(activation_checkpointing="on")),
    ],
)
def test_an_update_does_not_depend_on_packing_or_checkpointing(packing, memory):
    """A checkpointed layer computes the backward pass with the same experts."""
    learner = build_mixture()
    replay_routing(ScoringModel(learner))
    groups = sampled(changed(learner, 0.05), length=9)
    off = MemoryConfig(activation_checkpointing="off")
    found = []
    for packs, kept in ((False, off), (packing, memory)):
        model = copy.deepcopy(learner)
        updater = Updater(model, ALGORITHMS["grpo"], OPTIMIZER, packing=packs, memory=kept)
        replay_routing(updater.model)
        metrics = updater.update(groups)
        found.append((metrics["grad_norm"], model.state_dict()))
    (norm, weights), (other, others) = found
    assert other == pytest.approx(norm, rel=1e-4)
    for name, x in weights.items():
        torch.testing.assert_close(others[name], x, atol=1e-4, rtol=1e-4)
    without = Updater(copy.deepcopy(learner), ALGORITHMS["grpo"], OPTIMIZER)
    assert without.update(groups)["grad_norm"] != pytest.approx(norm, rel=1e-3)


async def test_what_cannot_be_replayed_is_one_line(tmp_path):
    save_models(tmp_path)
    case = CASES["mixture-replayed"]
    learner = await opened(case, tmp_path)
    with pytest.raises(RunFailure, match="the experts of each token, which the policy does not"):
        await learner.update(Experience(episodes(CASES["mixture"])), 1)
    with pytest.raises(ValueError, match=r"needs a mixture of experts: .* model_type \(llama\)"):
        await opened(replace(case, model="model"), tmp_path)


def test_tokens_of_later_turns_are_added_and_earlier_ones_keep_their_experts():
    drawn = np.random.default_rng(0)
    first, second = (drawn.integers(0, 4, (n, 2, 2), dtype=np.uint8) for n in (4, 8))
    segment = Segment()
    segment.append_context([5, 6, 7], 0)
    end = FinishReason.LENGTH
    segment.append_completion(Completion((8, 9), (-1.0, -1.0), (0, 0), end, None, first), 0)
    segment.append_context([3, 4], 1)
    segment.append_completion(Completion((8, 9), (-1.0, -1.0), (1, 1), end, None, second), 1)
    segment.check()
    assert np.array_equal(segment.experts, np.concatenate([first, second[4:]]))
    assert SamplingParams().with_experts is False

"""Models that only score: the plan counts them, and they can wait in the host's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config

from rl.credit.algorithms import ALGORITHMS
from rl.credit.shaping import LocalModel, Shaping, Weighted
from rl.credit.shaping.record import shape
from rl.learner.memory.host import WaitingWeights
from rl.learner.memory.offloading import Offloader
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.planning.advice import settings_that_fit
from rl.planning.memory import Planner
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from tests.helpers.small_learner import build_group, build_model

GIB = 2**30
WAITS = MemoryConfig(offload_scorers=True)


def model_folder(folder, width=1024, layers=2, kind="Qwen3ForCausalLM", **changes):
    settings = {
        "vocab_size": 30000,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "architectures": [kind],
        **changes,
    }
    Qwen3Config(**settings).save_pretrained(folder)
    return folder


def parameters(width=1024, layers=2):
    attention = width * 64 * (16 + 8 + 8 + 16) + 2 * 64
    return 30000 * width + layers * (attention + 9 * width**2 + 2 * width) + width


@pytest.fixture
def folder(tmp_path):
    return model_folder(tmp_path / "policy")


@pytest.fixture
def reward_model(tmp_path):
    kind = "Qwen3ForSequenceClassification"
    return model_folder(tmp_path / "rm", kind=kind, num_labels=1, dtype="bfloat16")


def config_of(folder, *words):
    given = ["env=countdown", f"model={folder}", "plan.gpu_gb=80", "context_length=512", *words]
    return parse(TrainConfig, given, command="rl.train", presets=PRESETS)


def planner_of(folder):
    """Plans of runs with the model in ``folder`` and some more words."""
    planner = Planner(config_of(folder))
    return lambda *words: planner.plan(config_of(folder, *words))


def test_a_reward_model_counts_in_every_phase_or_while_it_scores(folder, reward_model):
    shaping = f"shaping=reward_model(path={str(reward_model)!r})"
    planned = planner_of(folder)
    plain = planned()
    assert plain.score == {}
    assert plain.learn["reward models"] == 0
    size = 2 * (parameters() + 1024)  # bfloat16, with the head of one label
    stays = planned(shaping)
    assert {phase["reward models"] for phase in (stays.learn, stays.generate, stays.score)} == {
        size
    }
    grown = sum(stays.learn.values()) - sum(plain.learn.values())
    assert grown == pytest.approx(1.05 * size, rel=1e-6)
    waits = planned(shaping, "memory.offload_scorers=true")
    assert (waits.learn, waits.generate) == (plain.learn, plain.generate)
    assert waits.score["reward models"] == size
    # The hidden states of 4096 tokens, and some copies of them.
    assert 1 < waits.score["activations"] / (4096 * 1024 * 2) < 20
    lines = waits.table().splitlines()
    assert lines[1].split() == ["learn", "generate", "score"]
    assert [line.split()[-2:] for line in lines if line.startswith("reward models")] == [
        [f"{size / GIB:.1f}", "GiB"]
    ]


def test_models_elsewhere_and_judges(folder, reward_model, tmp_path):
    path, planned = str(reward_model), planner_of(folder)
    for elsewhere in (
        f"reward_model(path={path!r}, device='cpu')",
        f"reward_model(path={path!r}, device='cuda:1')",
        "judge(model='NAME', url='http://localhost:9/v1')",
        "kimi_length",
    ):
        assert planned(f"shaping={elsewhere}").score == {}
    judge = model_folder(tmp_path / "judge", layers=3)
    both = f"shaping=reward_model(path={path!r}, device='cuda') + judge(model={str(judge)!r})"
    small, large = 2 * (parameters() + 1024), 2 * parameters(layers=3)
    assert planned(both).learn["reward models"] == small + large
    # One of the two scores at a time.
    waits = planned(both, "memory.offload_scorers=true")
    assert waits.score["reward models"] == large


def test_a_reference_that_waits_is_not_counted_beside_gradients(folder):
    planner = Planner(config_of(folder, "algo.kl.coef=0.1"))
    stays, waits = (
        planner.plan(config_of(folder, "algo.kl.coef=0.1", f"memory.offload_scorers={waits}"))
        for waits in ("false", "true")
    )
    assert stays.learn["reference"] == stays.generate["reference"] == stays.learn["weights"]
    assert (waits.learn["reference"], waits.generate["reference"]) == (0, 0)


def advice(config, larger, smaller):
    """The advice for ``config`` on a GPU on which ``smaller`` fits and ``larger`` does not."""
    planner = Planner(config)
    peaks = [planner.plan(variant).peak for variant in (smaller, larger)]
    assert peaks[0] < peaks[1]
    planner.capacity = sum(peaks) // 2
    return settings_that_fit(planner, config)


def test_waiting_is_advised_where_it_is_enough(folder, tmp_path):
    judge = model_folder(tmp_path / "judge", width=2048)
    config = config_of(folder, "sampling.slots=8", f"shaping=judge(model={str(judge)!r})")
    waits = replace(config, memory=WAITS)
    assert advice(config, config, waits) == "memory.offload_scorers=true"


def test_a_quantised_base_is_advised_where_it_is_what_fits(tmp_path):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    wide = model_folder(tmp_path / "wide", width=2048)
    words = ("lora.rank=8", "sampling.slots=1", "policy.cache_gb=0.1")
    whole, eight, four = (config_of(wide, *words, f"lora.base_bits={b}") for b in (0, 8, 4))
    assert advice(whole, whole, eight) == "lora.base_bits=8"
    assert advice(whole, eight, four) == "lora.base_bits=4"
    # The weights of a layer: from 16 bits to 8 and 4, with a scale of 32 bits for 64 weights.
    sizes = [Planner(config).plan(config).learn["weights"] for config in (whole, eight, four)]
    linear = 2 * (2048 * 64 * 48 + 9 * 2048**2)
    tables = 14 * 256 * 4
    assert sizes[0] - sizes[1] == linear * (16 - 8.5) / 8 - tables
    assert sizes[0] - sizes[2] == linear * (16 - 4.5) / 8


def updater(memory):
    row = ALGORITHMS["grpo"].changed({"kl.coef": 0.1, "kl.ref_every": 2})
    model = build_model(dtype=torch.bfloat16)
    return Updater(model, row, OptimizerConfig(lr=1e-2), memory=memory).seeded(1)


def groups():
    return [build_group([[(3, 4, 1.0), (2, 3, 0.0)], [(3, 5, 0.0)]])]


def test_a_reference_waits_except_while_it_scores():
    waiting, resident = updater(WAITS), updater(MemoryConfig())
    seen = []
    score = waiting.reference.score_batch

    def scored(*given):
        seen.append(waiting.waiting.waits)
        return score(*given)

    waiting.reference.score_batch = scored
    for _ in range(5):
        assert waiting.waiting.waits
        assert waiting.update(groups()) == pytest.approx(resident.update(groups()), nan_ok=True)
    assert seen == [False] * 5
    for one, other in zip(
        waiting.reference.model.parameters(), resident.reference.model.parameters(), strict=True
    ):
        assert torch.equal(one, other), "refreshed while it waited"
    assert resident.waiting is None
    # Sleeping engines move what is on the device: 12 bytes a parameter without the reference.
    count = sum(p.numel() for p in waiting.model.model.parameters())
    steps = 4 * len(list(waiting.model.model.parameters()))
    assert Offloader(waiting).offload() == 12 * count + steps
    assert Offloader(resident).offload() == 14 * count + steps


def test_weights_leave_and_come_back_with_one_copy():
    model = torch.nn.Linear(2, 2)
    before, place = model.weight.detach().clone(), model.weight.data_ptr()
    weights = WaitingWeights(model)
    weights.onload()
    assert model.weight.data_ptr() == place
    weights.offload()
    assert weights.waits
    host = model.weight.data_ptr()
    assert host != place
    weights.onload()
    weights.offload()
    assert model.weight.data_ptr() == host
    assert torch.equal(model.weight, before)


def test_a_shapings_model_leaves_when_it_has_scored():
    calls = []
    scores = Shaping(
        "good",
        lambda members: calls.append("scores") or [1.0] * len(members),
        model=LocalModel("x", lambda: calls.append("leaves")),
    )
    plain = Shaping("plain", lambda members: calls.append("plain") or [0.0] * len(members))
    shapings = [Weighted(2.0, scores), Weighted(1.0, plain)]
    for offload, expected in ((True, ["scores", "leaves", "plain"]), (False, ["scores", "plain"])):
        calls.clear()
        played = groups()
        shape(shapings, played, "", 1.0, offload=offload)
        assert calls == expected
        assert all(t.shaping == {"good": 2.0, "plain": 0.0} for t in played[0].trajectories)

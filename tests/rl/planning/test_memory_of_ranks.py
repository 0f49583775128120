"""The memory plan of ranks, against arithmetic and against two real ranks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ranked_cases import run_ranks
from transformers import AutoModelForCausalLM, Qwen3Config

from rl.credit.algorithms import ALGORITHMS
from rl.learner.lora import add_adapter
from rl.learner.ranks.world import SOLO
from rl.learner.scoring import ScoringModule
from rl.learner.seam import TrainingSpec
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.planning.learner import _count, _rows_of, learner_memory
from rl.planning.live_bytes import LiveBytes
from rl.planning.memory import Planner
from rl.settings.lora import NO_LORA, LoraConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.train import main

MEMORY = MemoryConfig(activation_checkpointing="on")
PARTS = ("weights", "critic", "copies", "moments", "gradients", "activations")
CASES = {
    "float32": ("grpo", "float32", NO_LORA),
    "bfloat16": ("grpo", "bfloat16", NO_LORA),
    "critic": ("ppo", "bfloat16", NO_LORA),
    "adapter": ("grpo", "bfloat16", LoraConfig(rank=4)),
}


def shape(vocab_size=20_000, num_hidden_layers=3):
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )


def planned(name, ranks, config=None, tokens=256):
    algorithm, dtype, lora = CASES[name]
    training = TrainingSpec(ALGORITHMS[algorithm], OptimizerConfig(), 1.0, tokens, memory=MEMORY)
    return learner_memory(config or shape(), training, lora, dtype, row=tokens, ranks=ranks)


async def counted(name, world=SOLO):
    """The parts as a rank with real tensors has them."""
    algorithm, dtype, lora = CASES[name]
    stored = torch.float32 if not lora.rank else getattr(torch, dtype)
    model = AutoModelForCausalLM.from_config(shape(), dtype=stored).eval()
    if lora.rank:
        add_adapter(model, lora, "", 0)
    root = ScoringModule(model, with_values=ALGORITHMS[algorithm].uses_values, memory=MEMORY)
    world.shard(root)
    with LiveBytes() as live:
        found = _count(root, OptimizerConfig(), _rows_of(256, 256), live)
    return {part: getattr(found, part) for part in PARTS}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two real ranks count. The dtype of their computation is a setting of the group."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        names = [
            n for n, case in CASES.items() if (case[1] if not case[2].rank else "float32") == dtype
        ]
        jobs = {name: partial(counted, name) for name in names}
        folder = tmp_path_factory.mktemp(dtype)
        found |= run_ranks(2, jobs, folder, dtype=getattr(torch, dtype))[0]
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_plan_counts_what_a_rank_has(two, name):
    plan = planned(name, 2)
    assert isinstance(two[name], dict), two[name]
    for part in PARTS:
        assert getattr(plan, part) == pytest.approx(two[name][part], rel=0.05, abs=4096), part


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_what_stays_is_divided_by_the_ranks(name):
    """Float32 weights, two averages and a gradient: 16 bytes for each weight."""
    count = sum(p.numel() for p in AutoModelForCausalLM.from_config(shape()).parameters())
    for ranks in (2, 4, 8):
        plan = planned(name, ranks)
        assert plan.copies == 0
        assert plan.resident + plan.gradients == pytest.approx(16 * count / ranks, rel=0.01)


@pytest.mark.nightly
def test_gathered_weights_are_freed_layer_by_layer():
    """Of 24 layers, at most three are gathered at once, beside the embedding."""
    config = shape(vocab_size=300, num_hidden_layers=24)
    alone, ranks = (planned("float32", count, config, tokens=64) for count in (1, 4))
    model = AutoModelForCausalLM.from_config(config)
    layer = 4 * sum(p.numel() for p in model.model.layers[0].parameters())
    rest = 4 * sum(p.numel() for p in model.parameters()) - 24 * layer
    # Weights and gradients, and the buffers of both exchanges.
    assert layer < ranks.activations - alone.activations < 2 * (3 * layer + rest)


def test_a_run_of_ranks_is_planned(tmp_path, capfd):
    """Each rank has its part; the policy samples from complete weights of its own."""
    shape().save_pretrained(tmp_path)
    words = ["env=math", f"model={tmp_path}", "context_length=256", "plan.gpu_gb=24"]
    plans = []
    for ranks in (1, 4):
        config = parse(
            TrainConfig, [*words, f"learner.ranks={ranks}"], command="rl.train", presets=PRESETS
        )
        plans.append(Planner(config).plan(config))
    alone, ranks = plans
    count = sum(p.numel() for p in AutoModelForCausalLM.from_config(shape()).parameters())
    assert alone.learn["optimizer"] == pytest.approx(8 * count, rel=0.01)
    assert ranks.learn["optimizer"] == pytest.approx(8 * count / 4, rel=0.01)
    assert ranks.generate["policy"] - alone.generate["policy"] == 2 * count
    assert main([*words, "learner.ranks=4", "--dry-run"]) == 0
    assert "of each of 4 ranks, rows of up to 256 tokens\n" in capfd.readouterr().err

"""Activation checkpointing: the same gradients, from a counted share of the memory."""

import copy
from unittest import mock

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

import rl.learner.memory.activations
from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.learner.lora import add_adapter
from rl.learner.memory.activations import decoder_layers
from rl.learner.scoring import ScoringModel
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.preferences.policy_reward import PolicyReward
from rl.preferences.reward_model import RewardModel
from rl.rollout.trajectory import Segment
from rl.settings.lora import LoraConfig
from tests.helpers.small_learner import build_group

HIDDEN, TOKENS = 16, 40
OFF, ON, OFFLOAD = (MemoryConfig(activation_checkpointing=m) for m in ("off", "on", "offload"))
SHAPE = {
    "vocab_size": 31,
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
FAMILIES = {
    "llama": lambda n: LlamaConfig(**SHAPE, num_hidden_layers=n),
    "qwen2": lambda n: Qwen2Config(**SHAPE, num_hidden_layers=n),
    "qwen3": lambda n: Qwen3Config(**SHAPE, num_hidden_layers=n, head_dim=8),
    "qwen3-moe": lambda n: Qwen3MoeConfig(
        **SHAPE,
        num_hidden_layers=n,
        head_dim=8,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "gemma3": lambda n: Gemma3TextConfig(**SHAPE, num_hidden_layers=n, head_dim=8),
    "phi3": lambda n: Phi3Config(**SHAPE, **IDS, num_hidden_layers=n),
    "olmo2": lambda n: Olmo2Config(**SHAPE, num_hidden_layers=n),
    "gpt2": lambda n: GPT2Config(vocab_size=31, n_positions=128, n_embd=16, n_layer=n, n_head=2),
    "mamba": lambda n: MambaConfig(
        vocab_size=31, hidden_size=16, state_size=4, num_hidden_layers=n
    ),
}


def new_model(family, layers=2, dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family](layers), dtype=dtype).eval()


def row(length=TOKENS):
    ids = torch.randint(2, 31, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    return Segment(ids, [0] + [1] * (length - 1), [0.0] * length, [0] * length, [0] * length)


def loss_of(model, memory, **options):
    """A loss of every score, and the bytes that autograd keeps for its gradient."""
    scorer = ScoringModel(model, memory=memory, **options)
    if scorer.value_head is not None:
        torch.nn.init.ones_(scorer.value_head.weight)
    (micro,) = Batch.from_segments([row(), row(TOKENS // 2)]).micro_batches(10_000)
    weights = {p.untyped_storage().data_ptr() for p in scorer.root.parameters()}
    kept = {}

    def pack(x):
        if x.untyped_storage().data_ptr() not in weights:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        scores = scorer.score(micro)
        loss = scores.logprobs.sum() + scores.entropy.square().sum()
        if scores.values is not None:
            loss = loss + scores.values.square().sum()
    return scorer, loss, sum(x.untyped_storage().nbytes() for x in kept.values())


def gradients(model, memory, **options):
    scorer, loss, _ = loss_of(model, memory, **options)
    return [g.double() for g in torch.autograd.grad(loss, scorer.parameters())]


def assert_same(model, **options):
    expected, *others = (gradients(model, memory, **options) for memory in (OFF, ON, OFFLOAD))
    for found in others:
        for a, b in zip(expected, found, strict=True):
            assert (a - b).norm() <= 1e-6 * a.norm()
    return expected


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_without_checkpointing(family):
    assert all(g.norm() > 0 for g in assert_same(new_model(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_keeps_its_input_only(family):
    """Counted as the difference between models of four and of two layers."""

    def bytes_of_a_layer(memory):
        two, four = (loss_of(new_model(family, n), memory)[2] for n in (2, 4))
        return (four - two) / 2

    of_input = 2 * (TOKENS - 1) * HIDDEN * 4
    assert bytes_of_a_layer(ON) == of_input
    assert bytes_of_a_layer(OFF) > 8 * of_input


def test_adapters_and_critics_are_checkpointed():
    adapted = new_model("qwen3")
    add_adapter(adapted, LoraConfig(rank=2), "somewhere", 0)
    assert_same(adapted)
    assert loss_of(adapted, ON)[2] < 0.3 * loss_of(adapted, OFF)[2]

    torch.manual_seed(0)
    both = {"own_trunk": True, "with_values": True}
    assert_same(new_model("llama"), **both)
    kept = [loss_of(new_model("llama", 4), memory, **both)[2] for memory in (OFF, ON)]
    assert kept[1] < 0.3 * kept[0]


@pytest.mark.parametrize("make", ["reward model", "policy"])
def test_rewarders_are_checkpointed(make):
    results = []
    for memory in (OFF, ON):
        model = new_model("llama", layers=4)
        if make == "policy":
            rewarder = PolicyReward(model, 0.1, memory=memory)
        else:
            rewarder = RewardModel.from_causal(model, memory)
            torch.nn.init.ones_(rewarder.head.weight)
        kept = []
        with saved_tensors_hooks(lambda x, kept=kept: kept.append(x.nbytes) or x, lambda x: x):
            rewards = rewarder.score([row(), row(TOKENS // 2)])
        results.append((sum(kept), torch.autograd.grad(rewards.sum(), rewarder.parameters())))
    (without, expected), (with_it, found) = results
    assert with_it < 0.3 * without
    for a, b in zip(expected, found, strict=True):
        assert (a - b).norm() <= 1e-6 * a.norm()


def test_offloading_moves_the_inputs_of_layers_to_the_host():
    moved = []

    class Recorded(saved_tensors_hooks):
        def __init__(self, pin_memory):
            assert not pin_memory, "memory is pinned for a GPU only"
            super().__init__(lambda x: moved.append(tuple(x.shape)) or x, lambda x: x)

    model = new_model("gpt2", layers=3)
    with mock.patch.object(rl.learner.memory.activations, "save_on_cpu", Recorded):
        loss_of(model, OFFLOAD)
        assert moved == [(2, TOKENS - 1, HIDDEN)] * 3
        loss_of(model, ON)
    assert len(moved) == 3


def test_a_whole_update_gives_the_same_weights():
    groups = [build_group([[(3, 4, 1.0), (2, 3, 0.0)], [(3, 5, 0.0)]])]
    weights = []
    for memory in (OFF, ON):
        model = new_model("llama")
        Updater(model, ALGORITHMS["ppo"], OptimizerConfig(lr=1e-3), memory=memory).update(groups)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert (weights[0] - weights[1]).norm() <= 1e-6 * weights[0].norm()


def test_layers_change_during_a_scored_forward_pass_only():
    model = new_model("llama")
    scorer, loss, _ = loss_of(model, ON)
    assert not any("forward" in vars(layer) for layer in decoder_layers(model.base_model))
    loss.backward()
    # A copy is a model of its own, and scoring without gradients keeps nothing.
    copied = ScoringModel(copy.deepcopy(model), memory=ON)
    with torch.no_grad():
        for parameter in copied.model.parameters():
            parameter.zero_()
    batch = Batch.from_segments([row()])
    assert not torch.equal(*(s.score_batch(batch, 1000)[0] for s in (scorer, copied)))


def test_an_own_forward_of_a_layer_returns():
    model = new_model("llama")
    layer = decoder_layers(model.base_model)[0]
    layer.forward = own = layer.forward
    loss_of(model, ON)
    assert vars(layer)["forward"] is own


def test_the_default_checkpoints_on_a_gpu():
    memory = MemoryConfig()
    assert memory.checkpointing_on("cpu") == "off"
    assert memory.checkpointing_on("cuda") == "on"
    assert OFFLOAD.checkpointing_on("cuda") == OFFLOAD.checkpointing_on("cpu") == "offload"


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="unlike Linear: give memory"):
        decoder_layers(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"activation_checkpointing \(yes\) must be one of auto"):
        MemoryConfig(activation_checkpointing="yes")

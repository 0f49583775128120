"""Packed rows give the gradients, losses and metrics of padded rows, or the rows are padded."""

import copy
import logging
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.learner.lora import add_adapter, trained_state
from rl.learner.scoring import ScoringModel
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.packing import attention, models
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.settings.lora import LoraConfig

VOCABULARY, WINDOW = 97, 160
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
}
FREE = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)
OURS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2)
    ),
}
OTHERS = {
    "bloom": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=2)
    ),
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2)
    ),
    "lfm2": lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, full_attn_idxs=[1])),
    "stablelm": lambda: StableLmForCausalLM(StableLmConfig(**SIZES)),
}


def built(make, dtype=torch.float32):
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2)
    return model.to(dtype).eval()


def episode(generator, prompt, member, count):
    """Two turns with an observation between them; every third member rewrites its context."""
    segment = Segment()

    def draw(n):
        return torch.randint(VOCABULARY, (n,), generator=generator).tolist()

    def add(ids, mask, turn):
        segment.token_ids += ids
        segment.loss_mask += [mask] * len(ids)
        segment.sampling_logprobs += [-4.5 * mask] * len(ids)
        segment.versions += [mask - 1] * len(ids)
        segment.turn_ids += [turn] * len(ids)

    add(prompt, 0, 0)
    add(draw(count), 1, 0)
    segments, sampled = [segment], [count, 6]
    if member % 3 == 2:
        segment = Segment()
        segments.append(segment)
        add([*prompt, *segments[0].token_ids[len(prompt) : len(prompt) + 5]], 0, 1)
    add(draw(4), 0, 1)
    add(draw(6), 1, 1)
    turns = [
        Turn("", "o", "stop_token", n, {"r": float(torch.rand((), generator=generator))})
        for n in sampled
    ]
    episode = Trajectory("t", {}, 0, 0, member, segments, turns, terminated=True)
    episode.outcome = float(member % 2)
    return episode


def groups():
    """Members of equal and unequal length, with a common prompt of 40 tokens or a short one."""
    generator = torch.Generator().manual_seed(1)
    result = []
    for length in (40, 33, 3):
        prompt = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        counts = (20, 20, 31, 1, 20, 7)
        result.append(
            TrajectoryGroup([episode(generator, prompt, m, n) for m, n in enumerate(counts)])
        )
    return result


def updated(model, row, *, packing, max_tokens=10_000):
    """The gradients of one update by parameter, its metrics, and the tokens that it computed."""
    learner = Updater(model, row, FREE, max_tokens_per_micro_batch=max_tokens, packing=packing)
    assert learner.model.packs == packing
    for part in (
        learner.model.value_head,
        *([] if learner.reference is None else [learner.reference.root.head]),
    ):
        if part is not None:
            with torch.no_grad():
                part.weight.add_(
                    0.05
                    * torch.randn(part.weight.shape, generator=torch.Generator().manual_seed(5))
                )
    found, computed = [], []

    def keep():
        found.extend(None if p.grad is None else p.grad.clone() for p in learner.model.parameters())
        learner.optimizer.zero_grad()

    learner.optimizer.step = keep
    learner.model.root.register_forward_hook(
        lambda _, given, __: computed.append(given[0].input_ids.numel())
    )
    metrics = learner.update(groups())
    return torch.cat([g.flatten() for g in found if g is not None]), metrics, sum(computed)


def assert_equal(got, expected, relative=5e-6):
    gradient, metrics, _ = got
    assert (gradient - expected[0]).norm() <= relative * expected[0].norm()
    assert metrics == pytest.approx(expected[1], rel=1e-4, abs=1e-5)


ROWS = {
    "grpo": ALGORITHMS["grpo"].changed({"kl.coef": 0.1, "entropy_coef": 0.01}),
    "gspo": ALGORITHMS["gspo"].changed({"old_logprobs": "update"}),
    "ppo": ALGORITHMS["ppo"].changed({"epochs": 1, "minibatches": 1}),
    "own-critic": ALGORITHMS["ppo"].changed(
        {"epochs": 1, "minibatches": 1, "value.critic": "model"}
    ),
    "prime": ALGORITHMS["prime"].changed({"epochs": 1, "minibatches": 1}),
}


@pytest.mark.parametrize("name", list(OURS))
def test_gradients_of_packed_rows_are_those_of_padded_rows(name):
    model = built(OURS[name])
    padded = updated(model, ROWS["grpo"], packing=False)
    packed = updated(model, ROWS["grpo"], packing=True)
    assert_equal(packed, padded)
    assert packed[0].norm() > 1e-3
    # Prompts of 40 and 33 tokens are computed once, and what a rewritten context begins with.
    assert packed[2] < 0.5 * padded[2]


@pytest.mark.parametrize("name", list(ROWS))
@pytest.mark.parametrize("max_tokens", [150, 10_000])
def test_every_part_of_the_loss_is_the_same(name, max_tokens):
    model = built(OURS["qwen3"])
    padded = updated(model, ROWS[name], packing=False, max_tokens=max_tokens)
    assert_equal(updated(model, ROWS[name], packing=True, max_tokens=max_tokens), padded)


def test_without_shared_prefixes_gradients_are_equal_to_1e_6(monkeypatch):
    monkeypatch.setattr("rl.packing.prefixes.MIN_SHARED", 1000)
    model = built(OURS["llama"])
    padded = updated(model, ROWS["grpo"], packing=False)
    packed = updated(model, ROWS["grpo"], packing=True)
    assert_equal(packed, padded, relative=1e-6)
    assert packed[2] == sum(map(len, Batch.from_groups(groups()).rows)) < padded[2]


def test_an_adapter_and_its_base_model_as_the_reference():
    pytest.importorskip("peft")
    model = built(OURS["qwen3"])
    add_adapter(model, LoraConfig(rank=4), "somewhere", 0)
    drawn = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in trained_state(model).values():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=drawn))
    state = copy.deepcopy(model.state_dict())
    padded = updated(model, ROWS["grpo"], packing=False)
    model.load_state_dict(state)
    assert_equal(updated(model, ROWS["grpo"], packing=True), padded)


def test_layers_that_are_computed_again_read_the_same_rows():
    """Activation checkpointing calls a layer a second time, in the backward pass."""
    model = built(OURS["qwen3"])
    expected = updated(model, ROWS["grpo"], packing=True)
    for layer in model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    assert_equal(updated(model, ROWS["grpo"], packing=True), expected, relative=1e-6)


def test_other_calls_of_a_model_stay_the_same_bit_for_bit(tmp_path):
    model = built(OURS["qwen3"])
    ids, mask = torch.arange(24).reshape(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    model.save_pretrained(tmp_path / "before")

    def outputs():
        with torch.no_grad():
            return [model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits]

    before = outputs()
    assert ScoringModel(model, packing=True).packs
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(), strict=True))
    model.save_pretrained(tmp_path / "after")
    saved = [(tmp_path / name / "config.json").read_text() for name in ("before", "after")]
    assert saved[0] == saved[1]


def test_bfloat16_models_pack_their_rows():
    model = built(OURS["qwen3"], torch.bfloat16)
    batch = Batch.from_groups(groups())
    scorer = ScoringModel(model, packing=True)
    (micro,) = scorer.micro_batches(batch, 10_000)
    assert micro.layout is not None
    packed = scorer.score_batch(batch, 10_000)[0]
    padded = ScoringModel(model).score_batch(batch, 10_000)[0]
    assert (packed - padded).abs().mean() < 0.1 < padded.std()


@pytest.fixture
def warnings(monkeypatch, caplog):
    monkeypatch.setattr(models, "_padded", set())
    caplog.set_level(logging.WARNING, "rl.packing.models")
    return caplog


@pytest.mark.parametrize("name", list(OTHERS))
def test_models_that_cannot_pack_are_padded_and_named_once(name, warnings):
    model = built(OTHERS[name])
    before = model.config._attn_implementation
    for _ in range(2):
        scorer = ScoringModel(model, packing=True)
        assert not scorer.packs
        (micro,) = scorer.micro_batches(Batch.from_groups(groups()), 10_000)
        assert micro.layout is None
    (line,) = [r.getMessage() for r in warnings.records if r.name == "rl.packing.models"]
    assert line.startswith(f"the learner pads rows of {name} instead of packing them: ")
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(("window", "packs"), [(51, True), (40, False)])
def test_rows_longer_than_a_window_are_padded(window, packs, warnings):
    """The longest row has 40 + 31 + 4 + 5 tokens, and the short ones at most 50."""
    model = built(lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)))
    scorer = ScoringModel(model, packing=True)
    short = Batch.from_segments([s for s in segments() if len(s) <= 51])
    long = Batch.from_groups(groups())
    assert [micro.layout is not None for micro in scorer.micro_batches(short, 10_000)] == [packs]
    assert [micro.layout is not None for micro in scorer.micro_batches(long, 10_000)] == [False]
    scorer.micro_batches(long, 10_000)
    assert len(warnings.records) == 1
    assert f"beyond {window} a layer reads only the newest tokens or" in warnings.text


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rows_in_which_rotary_embeddings_change_are_padded(kind, warnings):
    """Short rows beside a row longer than the original window of 51 would be rotated with it."""
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
        rope |= factors | {"original_max_position_embeddings": 51}
    sizes = SIZES | {"max_position_embeddings": 51 if kind == "dynamic" else WINDOW}
    model = built(lambda: LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)))
    scorer = ScoringModel(model, packing=True)
    short = Batch.from_segments([s for s in segments() if len(s) <= 51])
    long = Batch.from_groups(groups())
    assert [micro.layout is not None for micro in scorer.micro_batches(short, 10_000)] == [True]
    assert [micro.layout is not None for micro in scorer.micro_batches(long, 10_000)] == [False]
    assert "beyond 51 a layer" in warnings.text


def segments():
    return [s for group in groups() for t in group.trajectories for s in t.segments]


def test_a_wrong_attention_is_found_at_the_start(monkeypatch, warnings):
    """Keys of a sibling in place of the prefix: a silent error of 1 in each hidden state."""
    monkeypatch.setattr(
        "rl.packing.attention._by_buckets",
        lambda query, key, value, *_: value.repeat(1, 2, 1, 1).transpose(1, 2),
    )
    assert not ScoringModel(built(OURS["llama"]), packing=True).packs
    assert "hidden states differ by" in warnings.text


def of_torch_2_11(query, key, value, query_starts, key_starts, *lengths, scale, window_size):
    """Variable-length attention as documented for CUDA, segment by segment."""
    assert window_size == (-1, 0)
    spans = zip(pairwise(query_starts.tolist()), pairwise(key_starts.tolist()), strict=True)
    results = []
    for (q, q_end), (k, k_end) in spans:
        assert (q_end - q, k_end - k) <= lengths
        mask = torch.ones(q_end - q, k_end - k).tril(k_end - k - (q_end - q)).bool()
        parts = query[q:q_end], key[k:k_end], value[k:k_end]
        part = scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in parts), attn_mask=mask, scale=scale, enable_gqa=True
        )
        results.append(part[0].transpose(0, 1))
    return torch.cat(results)


def of_torch_2_12(*tensors, scale, window_size, enable_gqa=False):
    """The same with a flag, without which keys need as many heads as queries."""
    assert enable_gqa
    return of_torch_2_11(*tensors, scale=scale, window_size=window_size)


@pytest.mark.parametrize("varlen_attn", [of_torch_2_11, of_torch_2_12])
def test_what_variable_length_attention_reads(monkeypatch, varlen_attn):
    """On CUDA the same segments go to torch's kernel; here a reference takes its place."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    model = built(OURS["qwen3"])
    expected = updated(model, ROWS["grpo"], packing=True)
    monkeypatch.setattr(attention, "_by_buckets", attention._by_lengths)
    assert_equal(updated(model, ROWS["grpo"], packing=True), expected, relative=1e-6)


@pytest.mark.parametrize("attend", ["_by_buckets", "_by_lengths"])
def test_chunks_of_shared_keys_give_the_same_gradients(attend, monkeypatch):
    model = built(OURS["qwen3"])
    padded = updated(model, ROWS["grpo"], packing=False)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", of_torch_2_12)
    monkeypatch.setattr(attention, "_by_buckets", getattr(attention, attend))
    monkeypatch.setattr("rl.packing.layout.KEYS_PER_TOKEN", 1)
    (micro,) = ScoringModel(model, packing=True).micro_batches(Batch.from_groups(groups()), 10_000)
    assert len(micro.layout.chunks) == 3
    assert_equal(updated(model, ROWS["grpo"], packing=True), padded)


def test_keys_of_a_shared_prefix_are_not_kept_for_each_segment(monkeypatch):
    """100 answers of 2 tokens after a prompt of 80: 8,200 keys are read, 280 are computed."""
    prompt = list(range(80))
    rows = [
        Segment(
            token_ids=[*prompt, i % 97, i // 2, 1],
            loss_mask=[0] * 80 + [1] * 3,
            sampling_logprobs=[0.0] * 83,
            versions=[0] * 83,
            turn_ids=[0] * 83,
        )
        for i in range(100)
    ]
    scorer = ScoringModel(built(OURS["qwen3"]), packing=True)
    (micro,) = scorer.micro_batches(Batch.from_segments(rows), 10_000)
    assert (micro.input_ids.numel(), len(micro.layout.chunks)) == (280, 9)
    saved = {}

    def keep(x):
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes(), x
        return x

    def kept():
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            scorer.score(micro)
        return sum(size for size, _ in saved.values())

    bounded = kept()
    whole = micro.layout.chunks[0].buckets.start, micro.layout.chunks[-1].buckets.stop
    assert whole == (0, len(micro.layout.buckets))
    monkeypatch.setattr("rl.packing.layout.KEYS_PER_TOKEN", 1000)
    (micro,) = scorer.micro_batches(Batch.from_segments(rows), 10_000)
    assert len(micro.layout.chunks) == 1
    # Keys and values of 2 heads of 8 numbers in 2 layers.
    assert kept() - bounded > 0.9 * 8200 * 2 * 2 * 8 * 2 * 4


def test_variable_length_attention_that_is_wrong_is_replaced(monkeypatch, caplog):
    results = iter(["hidden states differ", None])
    monkeypatch.setattr(attention, "_measured", lambda _: next(results))
    monkeypatch.setattr(attention, "_variable_length", True)
    model = SimpleNamespace(device=torch.device("cuda"))
    assert attention._difference(model) is None
    assert not attention._variable_length
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "packed rows use sdpa: variable-length attention is not usable (hidden states differ)"
    )

"""The local policy against the transformers model itself: tokens, log-probabilities, weights."""

from __future__ import annotations

import asyncio
import functools
import random

import numpy as np
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, Phi3Config, Phi3ForCausalLM

from agents.completion import FinishReason, SamplingParams
from agents.local import Limits
from agents.local.forward import Batch, BatchedForward, position_bytes
from agents.local.forward.cache_names import cache_name
from agents.policy import PolicyFailure

THIN = ["qwen3", "qwen2", "llama", "mistral"]
BATCHED = ["gemma3", "phi3", "gpt2", "olmo2", "smollm3", "granite", "qwen3-moe", "mistral-sliding"]
FAMILIES = [*THIN, *BATCHED, "gpt-neo"]


def reference_logprobs(model, prompt, completion, temperature):
    """What one uncached forward of the transformers model says of every sampled token."""
    tokens = torch.tensor([*prompt, *completion.token_ids])
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].float()
    scaled = logits / (temperature or 1.0)
    return scaled.log_softmax(-1)


def assert_exact(model, prompt, completion, params, tolerance=1e-4):
    whole = reference_logprobs(model, prompt, completion, params.temperature)
    expected = whole.clone()
    for row, support in zip(expected, completion.supports or (), strict=False):
        row -= row[list(support)].logsumexp(-1)
    chosen = expected.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    assert (chosen - torch.tensor(completion.logprobs)).abs().max() < tolerance
    assert chosen.mean() < -0.5, "log-probabilities near 0 would make this check empty"
    for row, token in zip(whole, completion.token_ids, strict=True):
        # The nucleus: what is strictly likelier than the token has not reached top_p yet.
        likelier = row[row > row[token] + 1e-4].exp().sum()
        assert likelier < params.top_p
    return chosen


def random_prompts(lengths, seed=1):
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
async def test_greedy_completions_equal_generate(family, make_policy, make_model):
    model = make_model(family)
    policy = make_policy(model, max_slots=4)
    prompts = random_prompts([1, 3, 40, 17, 90, 5])
    params = [SamplingParams(temperature=0.0, max_tokens=12 + i) for i in range(len(prompts))]
    completions = await asyncio.gather(*map(policy.generate, prompts, params))
    for prompt, param, completion in zip(prompts, params, completions, strict=True):
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=param.max_tokens,
            pad_token_id=0,
        )
        assert output[0, len(prompt) :].tolist() == list(completion.token_ids)
        assert completion.finish_reason is FinishReason.LENGTH
        assert_exact(model, prompt, completion, param)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "gemma3", "qwen3-moe", "gpt-neo"])
async def test_logprobs_over_episodes_equal_a_full_forward(family, make_policy, make_model):
    """Groups with one prompt, several turns, mixed parameters, fewer slots than episodes."""
    model = make_model(family)
    policy = make_policy(model, max_slots=5)
    groups = random_prompts([30, 12, 45])

    async def play(prompt, member):
        rng = random.Random(f"{prompt}{member}")
        context = list(prompt)
        for turn in range(3):
            params = SamplingParams(
                temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
                top_p=rng.choice([1.0, 0.9, 0.5]),
                max_tokens=rng.randrange(1, 16),
                seed=member * 10 + turn,
            )
            completion = await policy.generate(context, params, f"{len(prompt)}/{member}")
            assert_exact(model, context, completion, params)
            await asyncio.sleep(rng.random() * 0.005)
            context += completion.token_ids
            context += [rng.randrange(256) for _ in range(rng.randrange(1, 12))]
        policy.end(f"{len(prompt)}/{member}")

    await asyncio.gather(*(play(prompt, member) for prompt in groups for member in range(4)))
    stats = policy.stats()
    assert stats.num_generated_tokens > 100
    if family != "gpt-neo":
        # How much more depends on which rows were needed when: on timing.
        assert stats.num_saved_tokens > 150


async def test_the_families_that_are_fast(make_policy, caplog):
    caplog.set_level("INFO", "agents.local")
    for family, kind, level, pace in [
        ("qwen3", "thin", None, ""),
        ("gemma3", "batched", "INFO", "batches pass through Gemma3ForCausalLM itself"),
        ("mistral-sliding", "batched", "INFO", "has no window of 8 of 256 positions"),
        ("gpt-neo", "transformers", "WARNING", "one at a time, which is slow: its attention"),
    ]:
        caplog.clear()
        policy = make_policy(family)
        assert policy.forward_kind == kind
        assert [r.levelname for r in caplog.records] == [level] * bool(level)
        assert pace in caplog.text


@pytest.mark.parametrize("family", BATCHED)
async def test_a_row_does_not_depend_on_the_rows_beside_it(family, make_policy, make_model):
    """Eight rows of different lengths in one batch, against the same requests one by one."""
    model = make_model(family)
    policy = make_policy(model, max_slots=8)
    prompts = random_prompts([1, 2, 9, 33, 60, 5, 20, 47])
    params = [SamplingParams(max_tokens=20 + 3 * i, seed=i) for i in range(len(prompts))]
    together = await asyncio.gather(*map(policy.generate, prompts, params))
    assert policy.stats().num_steps < 60
    await policy.load_weights(None, 0)
    for prompt, param, beside in zip(prompts, params, together, strict=True):
        alone = await policy.generate(prompt, param)
        assert alone.token_ids == beside.token_ids
        assert alone.logprobs == pytest.approx(beside.logprobs, abs=1e-4)


async def test_dropout_of_a_training_model_is_off_and_its_mode_is_kept(make_policy, make_model):
    model = make_model("gpt2")
    model.train()
    model.lm_head.eval()
    before = [module.training for module in model.modules()]
    policy = make_policy(model)
    params = SamplingParams(max_tokens=8)
    completion = await policy.generate([1, 2, 3], params)
    assert [module.training for module in model.modules()] == before
    model.eval()
    assert_exact(model, [1, 2, 3], completion, params)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
async def test_weights_changed_in_place_are_seen(family, make_policy, make_model):
    model = make_model(family)
    policy = make_policy(model)
    params = SamplingParams(max_tokens=10)
    first = await policy.generate(list(range(40)), params, "a")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.arange(20)[None], labels=torch.arange(20)[None]).loss.backward()
    optimizer.step()
    await policy.load_weights(None, 7)
    assert policy.version == 7
    longer = [*range(40), *first.token_ids, 5]
    second = await policy.generate(longer, params, "a")
    assert first.versions == (0,) * 10
    assert second.versions == (7,) * 10
    assert_exact(model, longer, second, params)
    # The update was large enough for stale keys and values to show.
    assert (
        reference_logprobs(model, range(40), first, 1.0).gather(
            -1, torch.tensor(first.token_ids)[:, None]
        )[:, 0]
        - torch.tensor(first.logprobs)
    ).abs().max() > 0.1


def scale_in_place(model):
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)


def move(model):
    model.model.norm.weight.data = model.model.norm.weight.data.clone()


def optimizer_step(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    model(torch.arange(20)[None], labels=torch.arange(20)[None]).loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        scale_in_place,
        move,
        optimizer_step,
        # A fused optimizer does not count up the tensors' versions.
        functools.partial(optimizer_step, fused=True),
    ],
)
async def test_weights_changed_without_a_word_are_refused(make_policy, make_model, change):
    model = make_model("qwen3")
    policy = make_policy(model)
    optimizer_step(make_model("qwen3"))  # another model's
    await policy.generate([1], SamplingParams(max_tokens=1))
    change(model)
    with pytest.raises(PolicyFailure, match=r"load_weights\(None, version\)"):
        await policy.generate([1], SamplingParams(max_tokens=1))
    await policy.load_weights(None, 1)
    completion = await policy.generate([1], SamplingParams(max_tokens=1))
    assert completion.versions == (1,)


async def test_weights_by_name_are_copied(make_policy, make_model):
    model, other = make_model("qwen3"), make_model("qwen3")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    policy = make_policy(model)
    loss = model(torch.arange(5)[None], labels=torch.arange(5)[None]).loss
    weights = {k: v for k, v in other.state_dict().items() if k != "lm_head.weight"}  # tied
    await policy.load_weights(weights, 3)
    params = SamplingParams(max_tokens=6)
    completion = await policy.generate([9, 8, 7], params)
    assert completion.versions == (3,) * 6
    assert_exact(other, [9, 8, 7], completion, params)
    # A graph that saved the former weights knows that they are gone.
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "lack 'model.norm.weight'"),
        (lambda w: w.update(extra=torch.zeros(1)), "have 'extra'"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"shape \(3,\)"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_whole(make_policy, make_model, change, message):
    model = make_model("qwen3")
    policy = make_policy(model)
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    change(weights)
    with pytest.raises(ValueError, match=message):
        await policy.load_weights(weights, 1)
    assert policy.version == 0
    assert all(parameter.abs().sum() > 0 for parameter in model.parameters())


async def test_an_update_while_generating_is_refused(make_policy, make_model):
    model = make_model("qwen3")
    policy = make_policy(model)
    # Enough requests that some are unfinished when this thread runs, on a busy machine as well.
    calls = [
        asyncio.create_task(policy.generate([i], SamplingParams(max_tokens=250))) for i in range(64)
    ]
    while policy.stats().num_generated_tokens < 5:
        await asyncio.sleep(0.001)
    optimizer_step(model, fused=True)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, PolicyFailure)]
    assert refused and all("while nothing is generated" in str(end) for end in refused)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
async def test_new_weights_in_mid_completion_take_over_from_the_next_token(
    family, make_policy, make_model
):
    model = make_model(family)
    policy = make_policy(model)
    params = SamplingParams(max_tokens=200)
    prompt = list(range(30))
    call = asyncio.create_task(policy.generate(prompt, params))
    while policy.stats().num_generated_tokens < 20:
        await asyncio.sleep(0.001)
    other = {name: tensor * 1.2 for name, tensor in model.state_dict().items()}
    old = make_model(family)
    await policy.load_weights(other, 1)
    completion = await call
    change = completion.versions.index(1)
    assert completion.versions == (0,) * change + (1,) * (200 - change)
    assert change >= 20
    rows = torch.arange(200)
    token_ids, logprobs = torch.tensor(completion.token_ids), torch.tensor(completion.logprobs)
    before = reference_logprobs(old, prompt, completion, 1.0)[rows, token_ids]
    after = reference_logprobs(model, prompt, completion, 1.0)[rows, token_ids]
    assert (before - logprobs)[:change].abs().max() < 1e-4
    assert (after - logprobs)[change:].abs().max() < 1e-4


async def test_broken_weights_are_an_error_and_not_a_token(make_policy, make_model):
    model = make_model("qwen3")
    policy = make_policy(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    await policy.load_weights(None, 4)
    with pytest.raises(PolicyFailure, match="version 4 give log-probabilities that are not finite"):
        await policy.generate([1, 2], SamplingParams())


async def test_half_precision_stays_near_the_model(make_policy, make_model):
    model = make_model("qwen3").to(torch.bfloat16)
    policy = make_policy(model)
    params = SamplingParams(max_tokens=40)
    prompt = list(range(50))
    completion = await policy.generate(prompt, params)
    expected = reference_logprobs(model, prompt, completion, 1.0)
    chosen = expected[torch.arange(40), torch.tensor(completion.token_ids)]
    error = (chosen - torch.tensor(completion.logprobs)).abs()
    assert error.mean() < 0.05
    # fp32 log-probabilities: bf16 ones would all be multiples of 2^-7 between -2 and -4.
    assert any(abs(x * 128 - round(x * 128)) > 1e-3 for x in completion.logprobs)


async def test_a_model_that_moved_to_another_dtype_is_followed(make_policy, make_model):
    model = make_model("llama")
    policy = make_policy(model)
    params = SamplingParams(max_tokens=5)
    await policy.generate([1, 2, 3], params, "a")
    model.to(torch.float64)
    await policy.load_weights(None, 1)
    completion = await policy.generate([1, 2, 3, 4], params, "a")
    assert_exact(model, [1, 2, 3, 4], completion, params)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "prompt_ids is empty"),
        ([1] * 257, SamplingParams(), "257 tokens, the context window 256"),
        ([1, 259], SamplingParams(), "holds 259, the model has tokens 0 to 258"),
        ([-1], SamplingParams(), "holds -1"),
        ([1], SamplingParams(stop=("",)), "empty string"),
    ],
)
async def test_a_wrong_request_is_rejected_with_the_reason(make_policy, prompt, params, message):
    with pytest.raises(ValueError, match=message):
        await make_policy().generate(prompt, params)


async def test_no_slots_are_refused(make_policy):
    with pytest.raises(ValueError, match=r"max_slots \(0\)"):
        make_policy(max_slots=0)


async def test_a_full_context_ends_the_completion(make_policy):
    policy = make_policy()
    params = SamplingParams(max_tokens=50)
    completion = await policy.generate([1] * 250, params)
    assert len(completion.token_ids) == 6
    assert completion.finish_reason is FinishReason.CONTEXT_FULL
    none_left = await policy.generate([1] * 256, params)
    assert none_left.token_ids == ()
    assert none_left.finish_reason is FinishReason.CONTEXT_FULL


async def test_stop_tokens_end_a_completion_and_are_kept(make_policy):
    policy = make_policy()
    free = await policy.generate([5, 6], SamplingParams(max_tokens=30, seed=3))
    stop = free.token_ids[12]
    halted = await policy.generate(
        [5, 6], SamplingParams(max_tokens=30, seed=3, stop_token_ids=(stop,))
    )
    assert halted.finish_reason is FinishReason.STOP_TOKEN
    assert halted.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_a_seed_gives_the_same_completion_in_every_batch(make_policy):
    policy = make_policy(max_slots=8)
    prompt = list(range(20))
    params = SamplingParams(max_tokens=25, seed=11)
    alone = await policy.generate(prompt, params)
    others = [policy.generate([i] * (i + 1), SamplingParams(max_tokens=30)) for i in range(20)]
    crowd = await asyncio.gather(policy.generate(prompt, params), *others)
    assert crowd[0].token_ids == alone.token_ids
    other_seeds = await asyncio.gather(
        *(policy.generate(prompt, SamplingParams(max_tokens=25, seed=s)) for s in range(5))
    )
    assert len({c.token_ids for c in [alone, *other_seeds]}) == 6


async def test_without_a_seed_the_policy_s_own_decides(make_policy):
    params = SamplingParams(max_tokens=20)
    runs = []
    for seed in (0, 0, 1):
        policy = make_policy(seed=seed)
        runs.append([(await policy.generate([1], params)).token_ids for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0][0] != runs[0][1]


def mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=259, hidden_size=32, num_hidden_layers=2))


async def test_a_model_without_keys_and_values_is_refused_in_one_line(make_policy):
    with pytest.raises(ValueError, match="of type mamba, whose config"):
        make_policy(mamba())
    with pytest.raises(ValueError) as refused:
        make_policy(mamba(), limits=Limits(context_window=64))
    said = str(refused.value)
    assert said.startswith("policy=local cannot sample from MambaForCausalLM, whose cache")
    assert said.endswith("use policy=vllm-server or another model") and "\n" not in said


async def test_rotary_embeddings_that_change_with_the_length_limit_the_window(make_policy):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    }
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": None}
    windows = {"max_position_embeddings": 256, "original_max_position_embeddings": 32}
    config = Phi3Config(vocab_size=259, rope_parameters=rope, **windows, **shape, **heads)
    model = Phi3ForCausalLM(config).eval()
    with pytest.raises(ValueError, match=r"\(256\) must be at most 32.* set context_length=32"):
        make_policy(model)
    policy = make_policy(model, limits=Limits(context_window=32))
    assert policy.forward_kind == "batched"
    params = SamplingParams(max_tokens=100)
    prompts = random_prompts([20, 3])
    completions = await asyncio.gather(*(policy.generate(prompt, params) for prompt in prompts))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.finish_reason is FinishReason.CONTEXT_FULL
        assert_exact(model, prompt, completion, params)


def cached_bytes(policy):
    forward = policy._engine._forward
    caches = forward._cache, forward._prefixes._store
    return sum(x.nbytes for cache in caches for x in (*cache.keys, *cache.values))


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt-neo"])
async def test_a_cache_of_limited_memory_plays_the_same_episodes_in_turns(
    family, make_policy, make_model
):
    model = make_model(family)
    prompts = random_prompts([5, 9, 14, 20, 3, 11])
    params = [SamplingParams(max_tokens=12, seed=i, temperature=0.7) for i in range(len(prompts))]
    room = 70 * position_bytes(model)
    free, bounded = make_policy(model), make_policy(model, limits=Limits(cache_bytes=room))
    for policy in (free, bounded):
        calls = [policy.generate(p, s) for p, s in zip(prompts, params, strict=True)]
        policy.completions = await asyncio.gather(*calls)
    for a, b in zip(free.completions, bounded.completions, strict=True):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    if family == "qwen3":
        assert 0 < cached_bytes(bounded) <= room
        assert cached_bytes(free) > room


async def test_a_request_that_the_cache_cannot_hold_is_refused(make_policy, make_model):
    model = make_model("qwen3")
    policy = make_policy(model, limits=Limits(cache_bytes=20 * position_bytes(model)))
    assert (await policy.generate([1] * 8, SamplingParams(max_tokens=12))).token_ids
    with pytest.raises(PolicyFailure, match=r"may have 21 tokens .* for 20: .*policy\.cache_gb"):
        await policy.generate([1] * 8, SamplingParams(max_tokens=13))


class OldForward(torch.nn.Module):
    """A model whose code names its cache as transformers did before version 5.24."""

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        return input_ids


class NewForward(torch.nn.Module):
    def forward(self, input_ids, cache=None, use_cache=None):
        return input_ids


class Wrapper(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


def test_the_cache_has_the_name_that_the_models_own_code_gives_it():
    assert cache_name(OldForward()) == "past_key_values"
    assert cache_name(NewForward()) == "cache"
    assert cache_name(Wrapper(OldForward())) == "past_key_values"
    with pytest.raises(ValueError, match=r"^Linear: no forward method takes a key-value cache"):
        cache_name(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "qwen3-moe"])
def test_the_bytes_of_a_position_are_those_of_its_keys_and_values(family, make_model):
    model = make_model(family)
    cached = model(torch.ones(1, 7, dtype=torch.long), use_cache=True)[cache_name(model)]
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cached.layers)
    assert position_bytes(model) == size // 7


def test_padding_beside_a_long_row_stays_within_the_models_positions(make_model):
    """A row that is nearly full, in a batch with a longer chunk: the padding ends after it."""
    model = make_model("gpt2")
    window = model.config.n_positions
    forward = BatchedForward(model)
    forward.reserve(2, window + 60)
    full, short = (np.array(row) for row in random_prompts([window - 1, 63]))
    none, counts = np.zeros(0, dtype=np.int64), np.array([window - 6, 2])
    chunks = np.zeros((2, window - 6), dtype=np.int64)
    chunks[0], chunks[1, :2] = full[: window - 6], short[:2]
    forward.run(Batch(none, chunks, counts, np.zeros(2, dtype=np.int64)))
    # Four tokens at the end of the window, and 60 at the beginning of the other row.
    chunks = np.zeros((2, 60), dtype=np.int64)
    chunks[0, :4], chunks[1] = full[window - 6 : window - 2], short[2:62]
    forward.run(Batch(none, chunks, np.array([4, 60]), counts))
    last = np.array([full[-1], short[-1]])
    nothing = np.zeros((0, 0), dtype=np.int64)
    found = forward.run(Batch(last, nothing, none, np.array([window - 2, 62])))
    for row, logits in zip((full, short), found, strict=True):
        with torch.no_grad():
            expected = model(torch.from_numpy(row)[None]).logits[0, -1]
        assert (logits - expected).abs().max() < 1e-3

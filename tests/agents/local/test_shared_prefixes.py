"""Rows that begin with the same tokens read the keys and values of these tokens once."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from agents.completion import SamplingParams
from agents.local.engine import Engine
from agents.local.forward import ThinForward, prefixes
from agents.local.forward.cache import KeyValueCache
from agents.local.forward.prefixes import SharedPrefixes
from agents.local.request import Request
from agents.local.slots import CacheLimits

WINDOW = 256


@pytest.fixture
def always(monkeypatch):
    """Prefixes are shared although these models are too small to gain from it."""
    monkeypatch.setattr(prefixes, "_WORTH_BYTES", -(10**12))


def make_engine(model, rows, **limits):
    cache = CacheLimits(rows, **limits)
    forward = ThinForward(model, cache.max_positions)
    return Engine(
        model, forward, None, cache=cache, context_window=WINDOW, prefill_tokens=64, seed=0
    )


def sampled(prompt, max_tokens, seed, session=None):
    return Request(prompt, SamplingParams(max_tokens=max_tokens, seed=seed), session)


@torch.inference_mode()
def run(engine, requests):
    for request in requests:
        engine.submit(request)
    while engine.busy:
        engine.step()


def groups_of_episodes(engine, drawn):
    """Groups that share a system prompt, with two to three turns, of which some edit the context.

    Returns all requests.
    """
    system = drawn.choices(range(256), k=20)
    prompts = [[*system, *drawn.choices(range(256), k=drawn.randint(1, 40))] for _ in range(4)]
    contexts = {f"{g}/{m}": list(prompts[g]) for g in range(4) for m in range(drawn.randint(1, 6))}
    made = []
    for turn in range(3):
        chosen = sorted(contexts, key=lambda _: drawn.random())[turn:]
        asked = [
            sampled(list(contexts[name]), drawn.randint(1, 12), drawn.randrange(10**6), name)
            for name in chosen
        ]
        run(engine, asked)
        for request in asked:
            context = [*request.prompt_ids, *request.token_ids, *drawn.choices(range(256), k=9)]
            if drawn.random() < 0.2:
                del context[drawn.randrange(5, 30) : 34]
            contexts[request.session] = context
        made += asked
    return made


def logprobs_of(model, request):
    """The log-probabilities of the request's tokens, by the model without a cache."""
    ids = torch.tensor([[*request.prompt_ids, *request.token_ids]])
    with torch.no_grad():
        scores = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    start = len(request.prompt_ids)
    return scores[start - 1 : -1].gather(-1, ids[0, start:, None])[:, 0].tolist()


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("seed", range(3))
def test_any_schedule_gives_the_model_s_own_logprobs(family, seed, make_model, always, monkeypatch):
    """Groups of ragged prompts, several turns, edited contexts, fewer rows than episodes."""
    reads = []
    original = ThinForward._attend_prefixes

    def noted(self, index, queries, shared):
        reads.append((len(queries), shared.first))
        return original(self, index, queries, shared)

    monkeypatch.setattr(ThinForward, "_attend_prefixes", noted)
    model = make_model(family)
    drawn = random.Random(seed)
    engine = make_engine(model, drawn.choice([5, 12, 24]))
    requests = groups_of_episodes(engine, drawn)
    for request in requests:
        np.testing.assert_allclose(request.logprobs, logprobs_of(model, request), atol=1e-4)
    assert max(rows for rows, _ in reads) >= 4
    assert max(first for _, first in reads) >= 20


def test_the_same_seeds_sample_the_same_tokens(make_model, monkeypatch):
    model = make_model("qwen3")
    answers = []
    for worth in (-(10**12), 10**12):
        monkeypatch.setattr(prefixes, "_WORTH_BYTES", worth)
        requests = groups_of_episodes(make_engine(model, 24), random.Random(7))
        answers.append(requests)
    for shared, own in zip(*answers, strict=True):
        assert shared.token_ids == own.token_ids
        np.testing.assert_allclose(shared.logprobs, own.logprobs, atol=1e-5)


def test_a_group_reads_its_prompt_once(make_model, monkeypatch):
    """Eight rows of 200 + 8 tokens: each decoding step reads 200 shared keys, not 1600."""
    model = make_model("qwen3")
    multiply, num_keys = torch.bmm, []

    def counted(a, b):
        num_keys.append(b.shape[0] * b.shape[2] if b.shape[1] == 32 else 0)
        return multiply(a, b)

    read = {}
    for worth in (-(10**12), 10**12):
        monkeypatch.setattr(prefixes, "_WORTH_BYTES", worth)
        engine = make_engine(model, 8)
        prompt = random.Random(0).choices(range(256), k=201)
        run(engine, [sampled(prompt, 1, seed) for seed in range(8)])
        with monkeypatch.context() as patched:
            patched.setattr(torch, "bmm", counted)
            num_keys.clear()
            run(engine, [sampled(prompt, 8, seed) for seed in range(8)])
        read[worth] = sum(num_keys) / model.config.num_key_value_heads / 3
    own = 8 * sum(range(201, 209))
    assert read[10**12] == own
    assert read[-(10**12)] == own - 8 * 8 * 200 + 8 * 200


def test_new_weights_forget_shared_prefixes(make_model, always):
    model = make_model("qwen3")
    engine = make_engine(model, 8)
    prompt = list(range(60))
    run(engine, [sampled(prompt, 4, seed) for seed in range(8)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.1
    engine.weights_changed(1)
    requests = [sampled(prompt, 6, seed) for seed in range(8)]
    run(engine, requests)
    for request in requests:
        np.testing.assert_allclose(request.logprobs, logprobs_of(model, request), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_prefixes_together_stay_within_the_limit(seed, make_model, always, monkeypatch):
    engine = make_engine(make_model("qwen3"), 24, max_positions=2000)
    forward, sizes, resize = engine._forward, [], KeyValueCache.resize

    def noted(self, num_rows, capacity):
        resize(self, num_rows, capacity)
        caches = forward._cache, forward._prefixes._store
        sizes.append([cache.num_rows * cache.capacity for cache in caches])

    monkeypatch.setattr(KeyValueCache, "resize", noted)
    groups_of_episodes(engine, random.Random(seed))
    assert max(map(sum, sizes)) <= 2000
    assert max(prefix for _, prefix in sizes) > 0


def rows_of(count, capacity):
    cache = KeyValueCache(torch.zeros(1), num_layers=1, num_heads=1, head_dim=2)
    cache.resize(count, capacity)
    cache.keys[0].normal_()
    cache.values[0].normal_()
    return cache, SharedPrefixes(cache)


def share(cache, shared, source, target, length):
    cache.copy(cache, source, target, length)
    shared.share(source, target, length)


def expect(cache, shared, lengths):
    """Every row's shared positions have the row's own keys and values."""
    reads = shared.reads(len(lengths))
    assert reads.lengths[:, 0].tolist() == lengths
    assert reads.first == min(lengths)
    for row, length in enumerate(lengths):
        number = int(reads.places[row]) // reads.num_members
        assert int(reads.members[reads.places[row]]) == row
        assert torch.equal(reads.keys[0][number, :length], cache.keys[0][row, 0, :length])
        assert torch.equal(reads.values[0][number, :length], cache.values[0][row, 0, :length])


def test_rows_share_what_they_have_in_common(always):
    cache, shared = rows_of(6, 200)
    share(cache, shared, 0, 1, 40)
    share(cache, shared, 0, 2, 30)
    expect(cache, shared, [40, 40, 30])
    # Row 2 goes on with a prompt of its own, and has a longer prefix in common with row 3.
    share(cache, shared, 2, 3, 70)
    expect(cache, shared, [40, 40, 70, 70])
    shared.swap(0, 3)
    cache.swap(0, 3, 200)
    expect(cache, shared, [70, 40, 70, 40])


def test_a_row_that_is_overwritten_shares_only_what_is_left(always):
    cache, shared = rows_of(4, 200)
    share(cache, shared, 0, 1, 40)
    shared.shorten(np.array([100, 25]))
    expect(cache, shared, [40, 25])
    shared.shorten(np.array([100, 0]))
    assert shared.reads(2) is None


def test_the_place_of_a_forgotten_prefix_is_used_again(always):
    cache, shared = rows_of(8, 64)
    for turn in range(20):
        shared.shorten(np.zeros(8, dtype=np.int64))
        for row in range(1, 8):
            share(cache, shared, 0, row, 30 + turn % 3)
        expect(cache, shared, [30 + turn % 3] * 8)
        assert shared._store.num_rows == 1


def test_prefixes_have_a_quarter_of_the_rows_positions(always):
    cache, shared = rows_of(8, 64)
    shared.resize(8, 64)
    for source in (0, 2, 4, 6):
        share(cache, shared, source, source + 1, 64)
    assert shared.reads(4) is not None
    assert shared.reads(8) is None


def test_half_precision_shares_nothing(always):
    cache = KeyValueCache(torch.zeros(1, dtype=torch.bfloat16), 1, 1, 2)
    cache.resize(4, 64)
    shared = SharedPrefixes(cache)
    share(cache, shared, 0, 1, 40)
    assert shared.reads(2) is None

"""The local policy samples from a model with an adapter like transformers."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch

from agents.completion import SamplingParams
from rl.learner.lora import add_adapter, trained_state, without_adapter
from rl.learner.model import score_tokens
from rl.settings.lora import LoraConfig

pytest.importorskip("peft")
PROMPTS = [list(range(start, start + 12)) for start in (0, 40, 80)]


def farthest(model, prompts, completions):
    pairs = zip(prompts, completions, strict=True)
    scored = [score_tokens(model, [*p, *c.token_ids], 1.0)[len(p) - 1 :] for p, c in pairs]
    found = itertools.chain(*(completion.logprobs for completion in completions))
    return max(abs(a - b) for a, b in zip(found, itertools.chain(*scored), strict=True))


@pytest.mark.quick
@pytest.mark.parametrize(("family", "kind"), [("qwen3", "thin"), ("llama", "thin")])
async def test_samples_and_scores_are_the_adapters(make_policy, make_model, family, kind):
    model = make_model(family)
    add_adapter(model, LoraConfig(rank=4), "somewhere", seed=0)
    policy = make_policy(model, max_slots=2)
    assert policy.facts()["forward"] == kind
    drawn = torch.Generator().manual_seed(1)
    for version in (1, 2):
        with torch.no_grad():
            for tensor in trained_state(model).values():
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=drawn))
        await policy.load_weights(None, version)
        sampling = [SamplingParams(max_tokens=16, seed=seed) for seed in range(3)]
        completions = await asyncio.gather(*map(policy.generate, PROMPTS, sampling))
        assert farthest(model, PROMPTS, completions) < 1e-4
        with without_adapter(model):
            assert farthest(model, PROMPTS, completions) > 0.1

"""Recorded probabilities of a local model are those of the recorded tokens."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.local import LocalPolicy


@pytest.fixture(scope="module")
def model(renderer):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
    config = Qwen3Config(vocab_size=len(renderer.tokenizer), **size, **heads, initializer_range=0.3)
    return Qwen3ForCausalLM(config).eval()


@pytest.mark.quick
@pytest.mark.parametrize("deterministic", [False, True])
async def test_logprobs_are_those_of_the_recorded_tokens(serve, renderer, model, deterministic):
    policy = LocalPolicy(model, renderer.tokenizer, deterministic=deterministic)
    policy.begin(["s"])
    sampling = SamplingParams(max_tokens=12)
    at_once = 1 if deterministic else 0
    try:
        async with serve(policy, sampling=sampling, at_once=at_once) as (agent, _, server):

            async def talk(text):
                history = [{"role": "user", "content": text}]
                for _ in range(3):
                    history += [await agent.say(history), {"role": "user", "content": "and?"}]
                return history

            histories = await asyncio.gather(talk("hello"), talk("which colour has box 3?"))
            # Back to the first answer of one, and on from there in another way.
            await agent.say([*histories[0][:2], {"role": "user", "content": "no"}])
            capture = await server.close(agent.base_url)
    finally:
        policy.end("s")
        await policy.close()
    assert [segment.parent is not None for segment in capture.segments] == [False, False, True]
    for segment in capture.segments:
        segment.check()
        with torch.no_grad():
            logits = model(torch.tensor([segment.token_ids])).logits[0]
        logprobs = logits.log_softmax(-1)
        for place, (token, mask) in enumerate(
            zip(segment.token_ids, segment.loss_mask, strict=True)
        ):
            if mask:
                expected = logprobs[place - 1, token].item()
                assert segment.sampling_logprobs[place] == pytest.approx(expected, abs=2e-4)
    assert sum(map(sum, (s.loss_mask for s in capture.segments))) > 40

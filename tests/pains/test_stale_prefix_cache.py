"""Complaint 9: keys and values of old weights are used with new weights.

NeMo#4018, prime-rl#1650.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.completion import SamplingParams
from agents.local import LocalPolicy


async def test_an_episode_over_two_versions_of_the_weights_prefills_its_prompt_again(toy_model):
    model = AutoModelForCausalLM.from_pretrained(toy_model).eval()
    policy = LocalPolicy(model, AutoTokenizer.from_pretrained(toy_model))
    sampling = SamplingParams(max_tokens=6, seed=1)
    try:
        first = await policy.generate([5, 6, 7], sampling, "episode")
        newer = {name: weight * 1.5 for name, weight in model.state_dict().items()}
        await policy.load_weights(newer, version=1)
        prompt = [5, 6, 7, *first.token_ids, 8]
        second = await policy.generate(prompt, sampling, "episode")
    finally:
        await policy.close()
    ids = torch.tensor([[*prompt, *second.token_ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    fresh = logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
    assert list(second.logprobs) == pytest.approx(fresh.tolist(), abs=1e-5)
    assert (set(first.versions), set(second.versions)) == ({0}, {1})

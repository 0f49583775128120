"""An update of the local policy's own copy of the weights, of which nothing is left out."""

from __future__ import annotations

import pytest
import torch

import agents.local.policy
from agents.completion import SamplingParams
from agents.local.weights import copy_weights
from agents.policy import PolicyFailure


@pytest.mark.parametrize("part", ["q_proj", "down_proj", "embed_tokens"])
async def test_one_tensor_left_out_of_a_bfloat16_update_at_1e_6_fails(
    make_model, make_policy, monkeypatch, part
):
    model = make_model("qwen3").bfloat16()
    policy = make_policy(model, shares_weights=False)
    drawn = torch.Generator().manual_seed(5)
    before = {n: w.clone() for n, w in model.state_dict().items() if n != "lm_head.weight"}
    # Adam's first step: few weights are small enough that bfloat16 shows it.
    after = {
        name: (w.float() + 1e-6 * torch.randn(w.shape, generator=drawn).sign()).bfloat16()
        for name, w in before.items()
    }
    name = next(n for n, w in before.items() if part in n and not torch.equal(w, after[n]))
    assert (before[name] != after[name]).float().mean() < 0.1

    def forgetful(target, weights):
        copy_weights(target, {**weights, name: before[name]})

    monkeypatch.setattr(agents.local.policy, "copy_weights", forgetful)
    expected = rf"the policy does not run version 1 of the weights: {name} has other values"
    with pytest.raises(PolicyFailure, match=expected):
        await policy.load_weights(after, 1)
    monkeypatch.undo()
    await policy.load_weights(after, 2)
    completion = await policy.generate([1, 2, 3], SamplingParams(max_tokens=2, seed=1))
    assert completion.versions == (2, 2)

"""Complaint 10: an update of the weights has no effect, without a message.

verl#5373; vLLM keeps the old output head if a checkpoint omits a tied one.
"""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.completion import SamplingParams
from agents.local import LocalPolicy
from agents.policy import PolicyFailure
from rl.run.folder import read_jsonl
from rl.train import main


async def test_incomplete_or_unannounced_weights_are_refused(toy_model):
    model = AutoModelForCausalLM.from_pretrained(toy_model).eval()
    policy = LocalPolicy(model, AutoTokenizer.from_pretrained(toy_model))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    lost = "model.norm.weight"
    try:
        with pytest.raises(ValueError, match=f"weights lack '{lost}'"):
            await policy.load_weights({n: w for n, w in weights.items() if n != lost}, version=1)
        model.model.norm.weight.data.mul_(2)
        model.model.norm.weight.data = model.model.norm.weight.data.clone()
        with pytest.raises(PolicyFailure, match="changed"):
            await policy.generate([5, 6], SamplingParams(max_tokens=2))
    finally:
        await policy.close()


def test_every_step_compares_the_sampler_with_the_learner(words, tmp_path):
    assert main(words(tmp_path, steps=3, **{"optimizer.lr": 1e-2})) == 0
    steps = [r for r in read_jsonl(tmp_path / "metrics.jsonl") if "loss" in r]
    assert len(steps) == 3
    assert all(r["grad_norm"] > 0 for r in steps), "the weights did change"
    assert max(r["sampling/logp_difference_max"] for r in steps) < 1e-4

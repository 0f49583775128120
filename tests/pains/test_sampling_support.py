"""Complaint 8: under top-p the sampler's probabilities are another distribution's than the
learner's, and the ratio of the two is biased.

TRL#6789, #7269 (mean ratio 0.895; 52% of the tokens off by more than a tenth).
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.completion import SamplingParams
from agents.local import LocalPolicy
from rl.train import main


async def test_logprobs_are_those_before_the_cut(toy_model):
    model = AutoModelForCausalLM.from_pretrained(toy_model).eval()
    policy = LocalPolicy(model, AutoTokenizer.from_pretrained(toy_model))
    sampling = SamplingParams(temperature=0.7, top_p=0.3, max_tokens=40, seed=1)
    prompt = [5, 6, 7]
    try:
        said = await policy.generate(prompt, sampling)
    finally:
        await policy.close()
    ids = torch.tensor([[*prompt, *said.token_ids]])
    with torch.no_grad():
        logprobs = (model(ids).logits[0] / 0.7).log_softmax(-1)
    learner = logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
    ratio = (learner - torch.tensor(said.logprobs)).exp()
    assert ratio.tolist() == pytest.approx([1.0] * 40, abs=1e-4)


def test_training_offers_no_cut(words, tmp_path, capfd):
    assert main([*words(tmp_path), "sampling.top_p=0.9"]) != 0
    assert "top_p" in capfd.readouterr().err

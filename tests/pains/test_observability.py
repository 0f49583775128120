"""Complaint 16: episodes cannot be compared with the numbers of their training.

open-instruct#1406, NeMo-RL#938, Harbor#128, inspect_ai#79, MLGym#18, slime#1776.
"""

from __future__ import annotations

import gzip
import json
from statistics import fmean

import numpy as np
import pytest
from transformers import AutoTokenizer

from rl.run.folder import read_jsonl
from rl.train import main


@pytest.mark.quick
def test_texts_stand_beside_the_numbers_of_their_training(words, toy_model, tmp_path):
    assert main(words(tmp_path, steps=1, shaping="0.5*kimi_length")) == 0
    (step,) = (r for r in read_jsonl(tmp_path / "metrics.jsonl") if "loss" in r)
    with gzip.open(tmp_path / "trajectories" / "step-000001.jsonl.gz") as file:
        episodes = [json.loads(line) for line in file]
    tokens = np.load(tmp_path / "trajectories" / "step-000001.npz")
    columns = [tokens[name] for name in ("token_ids", "sampling_logprobs", "versions")]
    assert len(episodes) == 6 * 4
    end = 0
    tokenizer = AutoTokenizer.from_pretrained(toy_model)
    for episode in episodes:
        (segment,) = episode["segments"]
        start, end = end, end + segment["num_tokens"]
        text = tokenizer.decode(tokens["token_ids"][start:end])
        for turn in episode["turns"]:
            assert turn["action"] in text
            assert turn["rewards"].keys() == {"even"}
            assert turn["generate_s"] >= 0
        assert episode["shaping"].keys() == {"kimi_length"}
    assert {len(column) for column in columns} == {end}
    earned = [sum(t["rewards"]["even"] for t in e["turns"]) for e in episodes]
    assert step["reward"] == pytest.approx(fmean(earned))
    shaped = [own + sum(e["shaping"].values()) for own, e in zip(earned, episodes, strict=True)]
    assert step["reward_shaped"] == pytest.approx(fmean(shaped))

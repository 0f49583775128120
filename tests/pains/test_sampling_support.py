"""Complaint 8: with top-p, sampler and learner use different distributions; their ratio is biased.

TRL#6789, #7269 (mean ratio 0.895; 52% of the tokens off by more than 0.1).
"""

from __future__ import annotations

import pytest

from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.train import main


@pytest.mark.quick
def test_a_run_that_samples_with_top_p_has_ratios_of_one(words, tmp_path):
    assert main([*words(tmp_path), "sampling.top_p=0.9", "sampling.top_k=20"]) == 0
    steps = [r for r in read_jsonl(tmp_path / "metrics.jsonl") if "loss" in r]
    assert steps
    for step in steps:
        assert step["sampling/logp_difference_max"] < 1e-4
        assert step["sampling/ratio_outside"] == 0
    played = read_trajectories(next((tmp_path / "trajectories").glob("step-*.gz")))
    sizes = [len(ids) for t in played for s in t.segments for ids in s.supports if ids]
    assert len(sizes) == sum(t.num_sampled for t in played)
    assert max(sizes) <= 20

"""The main job with a mixture of experts, whose experts are recorded and repeated."""

import asyncio

import numpy as np
import pytest

from rl.replay import ReplayConfig, replay
from rl.rollout.trajectory_files import read_trajectories
from rl.train import main


@pytest.mark.slow
def test_a_run_repeats_the_samplers_experts_and_can_be_replayed(words, tmp_path, toy_mixture):
    out = tmp_path / "run"
    given = {"staleness": 1, "replay_routing": True, "save_every": 2, "steps": 2}
    assert main(words(out, model=toy_mixture, **given)) == 0
    episodes = read_trajectories(out / "trajectories" / "step-000002.jsonl.gz")
    segments = [segment for t in episodes for segment in t.segments]
    assert segments
    for segment in segments:
        assert segment.experts.shape == (len(segment) - 1, 2, 2)
        assert segment.experts.dtype == np.uint8
    result = asyncio.run(replay(ReplayConfig(run=str(out))))
    assert result["equal"], "the recorded experts give the same weights"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"replay_routing (True) needs a mixture of experts: "),
        ({"policy": "vllm-server"}, r"replay_routing (True) must be False with vLLM on a CPU: "),
    ],
)
def test_where_nothing_can_be_repeated_is_one_line(words, tmp_path, settings, message, capfd):
    given = {"replay_routing": True, "device": "cpu", **settings}
    assert main(words(tmp_path / "run", **given)) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith(f"error: {message}")

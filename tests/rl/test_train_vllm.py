"""The main job with a real vLLM server as its policy."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

import rl.replay
from rl.train import main


@pytest.fixture
def vllm_python():
    given = os.environ.get("TURNWISE_VLLM_PYTHON")
    if not given and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here, and TURNWISE_VLLM_PYTHON names no interpreter")
    return given or sys.executable


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_samples_from_a_server_and_each_update_is_proved(
    words, tmp_path, vllm_python, staleness
):
    out = tmp_path / "run"
    before = set(Path("/dev/shm").glob("turnwise-weights-*"))
    served = {"policy": "vllm-server", "policy__python": vllm_python, "staleness": staleness}
    small = {"model": "tiny", "tiny__demonstrations": 200, "tiny__steps": 60}
    small |= {"tiny__vocab_size": 261, "tiny__context_length": 64, "tiny__num_layers": 1}
    assert main(words(out, **served, **small, sampling__temperature=0.9)) == 0
    reported = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in reported if "loss" in record]
    assert len(steps) == 4
    for record in steps:
        assert 0 < record["sync/max_difference"] < 1e-4
        assert record["policy/restarts"] == 0
    if not staleness:
        # Server and learner are different programs with the same weights. A step without a
        # gradient scores nothing.
        scored = [r for r in steps if r["unscored_tokens"] < r["num_tokens"]]
        assert scored
        assert all(record["sampling/logp_difference_max"] < 1e-3 for record in scored)
    assert all(record["staleness/oldest"] <= staleness for record in steps)
    facts = json.loads((out / "versions.json").read_text())
    assert (facts["policy"], facts["endpoint"]) == ("vllm-server", "generate")
    log = (out / "logs" / "vllm-0.log").read_text(errors="replace")
    assert "vllm" in log.lower()
    assert set(Path("/dev/shm").glob("turnwise-weights-*")) <= before


def test_collectors_play_what_the_run_itself_plays(words, tmp_path, vllm_python):
    served = {"policy": "vllm-server", "policy__python": vllm_python, "steps": 2, "eval__tasks": 8}
    small = {"model": "tiny", "tiny__demonstrations": 200, "tiny__steps": 60}
    small |= {"tiny__vocab_size": 261, "tiny__context_length": 64, "tiny__num_layers": 1}
    # A registered name would be known to this process only.
    small |= {"env": f"{Path(__file__).parents[1] / 'helpers' / 'toy_envs.py'}:CopyEnv"}
    reported = {}
    for count in (1, 2):
        out = tmp_path / str(count)
        assert main(words(out, **served, **small, collectors=count)) == 0
        lines = (out / "metrics.jsonl").read_text().splitlines()
        reported[count] = [json.loads(line) for line in lines]
    for here, there in zip(*reported.values(), strict=True):
        assert here.keys() == there.keys()
        for key in ("reward", "num_sampled_tokens", "eval/success", "test/success"):
            assert here.get(key) == there.get(key)
        assert here.get("loss", 0.0) == pytest.approx(there.get("loss", 0.0), abs=1e-5)
    assert rl.replay.main([str(tmp_path / "2")]) == 0


def test_a_server_samples_from_the_learners_rounded_base(words, tmp_path, vllm_python):
    """The probe of the full-precision base differs by 0.6 nats, and the run would fail."""
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    out = tmp_path / "run"
    served = {"policy": "vllm-server", "policy__python": vllm_python, "steps": 2}
    small = {"model": "tiny", "tiny__demonstrations": 200, "tiny__steps": 60}
    small |= {"tiny__vocab_size": 261, "tiny__context_length": 64, "tiny__num_layers": 1}
    adapter = {"lora__rank": 8, "lora__base_bits": 4, "optimizer__lr": 1e-2}
    assert main(words(out, **served, **small, **adapter)) == 0
    reported = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in reported if "loss" in record]
    assert len(steps) == 2
    assert all(0 < record["sync/max_difference"] < 1e-4 for record in steps)
    assert not (out / "base-for-servers").exists()


def test_a_mixture_of_experts_learns_over_a_server(words, tmp_path, vllm_python, toy_mixture):
    """Each update of the experts is proved, so vLLM packs them again."""
    out = tmp_path / "run"
    served = {"policy": "vllm-server", "policy__python": vllm_python, "steps": 2}
    assert main(words(out, **served, model=toy_mixture)) == 0
    reported = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in reported if "loss" in record]
    assert len(steps) == 2
    assert all(record["grad_norm"] > 0 for record in steps)
    assert all(record["sync/max_difference"] < 1e-4 for record in steps)

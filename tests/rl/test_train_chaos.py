"""A short run of ``benchmarks.serving.chaos``: every fault once, over a real server."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from benchmarks.serving.chaos import ONE_MACHINE, Plan, disturbed
from rl.run.folder import read_jsonl

SMALL = ("env=toy-copy", "model=tiny", "tiny.demonstrations=200", "tiny.steps=60")
SMALL += ("tiny.vocab_size=261", "tiny.context_length=64", "tiny.num_layers=1")
SMALL += ("prompts=6", "group_size=4", "sampling.max_tokens=3", "optimizer.lr=3e-3")
SMALL += ("eval.every=1000", "eval.tasks=6", "eval.test_tasks=0", "threads=1")


@pytest.fixture
def vllm_python():
    given = os.environ.get("TURNWISE_VLLM_PYTHON")
    if not given and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here, and TURNWISE_VLLM_PYTHON names no interpreter")
    return given or sys.executable


@pytest.mark.nightly
def test_every_task_is_learned_once_and_nothing_is_left_whatever_happens(
    tmp_path, vllm_python, plugged, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", plugged["PYTHONPATH"])
    words = [*SMALL, f"policy.python={vllm_python}"]
    faults = dict.fromkeys(ONE_MACHINE.faults, 1)
    report = disturbed(tmp_path, words, Plan(faults=faults), minutes=0, seed=6)
    assert report["wrong"] == []
    assert sorted(one["what"] for one in report["happened"]) == sorted(faults)
    assert report["steps"] >= 6
    assert report["ledger"]["groups learned from"] == 6 * report["steps"]
    assert report["replay"] == {"steps": report["steps"], "equal": True, "max_difference": 0}
    assert report["left"] == {"processes": [], "shared memory": [], "weights": []}
    rewards = [r["reward"] for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert len(set(rewards)) > 1, "nothing was learned"

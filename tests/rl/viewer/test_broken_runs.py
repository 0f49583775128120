"""Runs of rl.train with a fault each: the first finding of the viewer names the cause."""

from __future__ import annotations

import json
import shutil

import pytest

import rl.learner.registration
import rl.policies.registration
from benchmarks.viewer.broken_runs import FAULTS, register_faults, train
from rl.viewer.runs import Runs

CAUSES = {
    "healthy": None,
    "tied rewards": ("identical", "sampling.temperature is 0.01"),
    "cut answers": ("answers_cut", "cut at the token limit"),
    "loss mask off by one": ("mask", "The loss mask is off by one"),
    "wrong chat template": ("template", "The chat template is not the model's own"),
    "stale sampler": ("mismatch", "as if it kept old weights"),
}
"""Kind of the first finding of each run, and a part of its title."""


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    """The learner and the policy of the broken runs, for the time of a test."""
    for registration in (rl.learner.registration, rl.policies.registration):
        registry = registration._registry
        monkeypatch.setattr(registry, "_objects", dict(registry._objects))
    register_faults()


@pytest.fixture
def settings(toy_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(toy_model, model)
    # Prompts by a template whose marks are rows of bytes are long.
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 160}))
    return {
        "env": "toy-copy",
        "model": str(model),
        "steps": 6,
        "prompts": 6,
        "group_size": 4,
        "optimizer.lr": 3e-3,
        "optimizer.warmup_steps": 0,
        "sampling.max_tokens": 3,
        "eval.every": 100,
        "eval.tasks": 6,
        "eval.test_tasks": 0,
        "save_every": 3,
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_finding_names_the_fault(fault, settings, tmp_path, monkeypatch, without_charts):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    shorter = {"sampling.max_tokens": 1} if fault == "cut answers" else {}
    train(fault, tmp_path / "run", settings, shorter)
    runs = Runs(tmp_path / "run")
    try:
        problems, checked = runs.run(runs.only()).problems(120.0)
    finally:
        runs.close()
    assert checked
    assert ("identical" in {problem["key"] for problem in problems}) == (fault == "tied rewards")
    expected = CAUSES[fault]
    if expected is None:
        assert [problem for problem in problems if problem["severity"] == "high"] == []
        return
    key, title = expected
    first = problems[0]
    assert (first["key"], title in first["title"]) == (key, True), problems
    assert first["episodes"] or first["query"], "the episodes that show it are one click away"

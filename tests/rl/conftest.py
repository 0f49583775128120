"""Toy environments, a toy model, and commands run in this process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import toy_envs

HOME = Path(__file__).resolve().parents[2]


toy_envs.register()


@pytest.fixture
def chatter():
    """The class of the chattering environment, with nothing counted yet."""
    toy_envs.ChatterEnv.forget()
    return toy_envs.ChatterEnv


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory) -> Path:
    """A folder with a Qwen3 of one layer that copies a digit of 0, 1, 2 a little too seldom."""
    from toy_models import dense, save_toy

    folder = tmp_path_factory.mktemp("toy") / "model"
    asyncio.run(save_toy(folder, dense))
    return folder


@pytest.fixture(scope="session")
def toy_mixture(tmp_path_factory) -> Path:
    """As :func:`toy_model`, a mixture of eight experts in two layers."""
    from toy_models import mixture, save_toy

    folder = tmp_path_factory.mktemp("toy") / "mixture"
    asyncio.run(save_toy(folder, mixture))
    return folder


@pytest.fixture
def words(toy_model):
    """From settings to the words of a short run's command line."""

    def words(out, **settings):
        defaults = {
            "env": "toy-copy",
            "model": toy_model,
            "steps": 4,
            "prompts": 6,
            "group_size": 4,
            "optimizer.lr": 3e-3,
            "optimizer.warmup_steps": 0,
            "sampling.max_tokens": 3,
            "sampling.slots": 24,
            "eval.every": 100,
            "eval.tasks": 6,
            "eval.test_tasks": 0,
            "save_every": 100,
            "out": out,
        }
        chosen = defaults | {key.replace("__", "."): value for key, value in settings.items()}
        return [f"{key}={value}" for key, value in chosen.items()]

    return words


@pytest.fixture
def without_charts(monkeypatch):
    """Runs in this process draw no charts, which take half of the processor time of a short run."""
    for chart in ("rl.run.curve.draw_curve", "rl.run.ledger_chart.draw_ledger"):
        monkeypatch.setattr(chart, lambda metrics, path, title: None)


@pytest.fixture
def plugged(tmp_path):
    """The environment of a process in which the toys are an installed plug-in."""
    site = tmp_path / "site"
    info = site / "toys-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[turnwise.envs]\ntoy-copy-v0 = toy_envs:CopyEnv\n")
    path = os.pathsep.join(map(str, (HOME, HOME / "tests" / "helpers", site)))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def make_model():
    from small_learner import build_model

    return build_model


@pytest.fixture
def make_trajectory():
    from small_learner import build_trajectory

    return build_trajectory


@pytest.fixture
def make_group():
    from small_learner import build_group

    return build_group


@pytest.fixture
def groups(make_group):
    """Two groups of multi-turn episodes of unequal length."""
    return [
        make_group(
            [
                [(4, 5, 0.0), (3, 2, 1.0)],
                [(4, 3, 0.0)],
                [(4, 7, 0.5), (2, 4, 0.0), (1, 1, 0.25)],
            ],
            seed=1,
        ),
        make_group([[(6, 2, 1.0)], [(6, 9, 0.0)]], seed=2),
    ]

"""Ranks compute the updates of one process: losses, gradients, weights and checkpoints."""

import asyncio
from functools import partial

import numpy as np
import pytest
from ranked_cases import CASES, learned, run_ranks, save_models, saved, unwritable, updates

SIZES = (2, 3)
RESUMED = ("grpo-kl", "ppo", "lora", "prime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    save_models(path)
    return path


@pytest.fixture(scope="module", params=SIZES)
def ranks(request, folder):
    """For each rank, the result of each job; with two ranks, checkpoints are written as well."""
    jobs = updates(folder)
    if request.param == 2:
        for name in RESUMED:
            jobs[f"save {name}"] = partial(saved, CASES[name], folder, folder / f"two-{name}")
        jobs["unwritable"] = partial(unwritable, folder)
    return run_ranks(request.param, jobs, folder)


def one(name, folder):
    return asyncio.run(learned(CASES[name], folder))


def assert_near(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        y = x.float().numpy() if hasattr(x, "numpy") else x
        np.testing.assert_allclose(found[name], y, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_ranks_make_the_updates_of_one_process(name, ranks, folder):
    """Metrics (the loss, the gradient's norm before clipping) and weights after five updates."""
    metrics, weights, scores, record = one(name, folder)
    for found in ranks:
        assert isinstance(found[name], list), found[name]
    assert metrics[0]["grad_norm"] > 0.5, "the gradient is clipped, so its norm says what it was"
    for found in ranks:
        assert found[name][0] == ranks[0][name][0], "ranks differ"
        for mine, theirs in zip(found[name][0], metrics, strict=True):
            assert_near(mine, theirs)
        assert_near(found[name][1], weights)
        np.testing.assert_allclose(found[name][2], scores, atol=1e-5)
        for column in ("advantages", "logprobs", "entropies"):
            mine, theirs = (getattr(r, column) for r in (found[name][3], record))
            np.testing.assert_allclose(mine, theirs, atol=1e-5)

"""Ranks compute the updates of one process: losses, gradients, weights and checkpoints.

All ranks of a size are started once, and compute every case one after the other.
"""

import asyncio
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from ranked_cases import CASES, learned, resumed, run_ranks, save_models, saved, unwritable, updates
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl.learner.checkpoint import SHARDS, load_trainer_state

pytestmark = pytest.mark.slow

WITH_THREE = ("grpo", "grpo-kl", "ppo", "lora", "empty-rank")
RESUMED = ("grpo-kl", "ppo-own-critic", "lora", "prime")
PAIRS = [*((2, name) for name in CASES), *((3, name) for name in WITH_THREE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    save_models(path)
    return path


@pytest.fixture(scope="module")
def two(folder):
    """For each of two ranks, the results by name. They save checkpoints as well."""
    jobs = updates(folder, CASES)
    for name in RESUMED:
        jobs[f"save {name}"] = partial(saved, CASES[name], folder, folder / f"two-{name}")
        checkpoint = folder / f"one-{name}"
        asyncio.run(saved(CASES[name], folder, checkpoint))
        jobs[f"resume {name}"] = partial(resumed, CASES[name], folder, checkpoint)
    jobs["unwritable"] = partial(unwritable, folder)
    return run_ranks(2, jobs, folder)


@pytest.fixture(scope="module")
def three(folder, two):
    """For each of three ranks, the results by name. They resume what two ranks saved."""
    jobs = updates(folder, WITH_THREE)
    for name in RESUMED:
        jobs[f"resume {name}"] = partial(resumed, CASES[name], folder, folder / f"two-{name}")
    return run_ranks(3, jobs, folder)


def assert_near(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        y = x.float().numpy() if hasattr(x, "numpy") else x
        np.testing.assert_allclose(found[name], y, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("size", "name"), PAIRS)
def test_ranks_make_the_updates_of_one_process(size, name, folder, request):
    """Metrics (the loss, the gradient's norm before clipping) and weights after five updates."""
    ranks = request.getfixturevalue({2: "two", 3: "three"}[size])
    metrics, weights, scores, record = asyncio.run(learned(CASES[name], folder))
    assert max(m["grad_norm"] for m in metrics) > 0.01, "clipped: weights alone hide its size"
    for rank, found in enumerate(ranks):
        assert isinstance(found[name], list), found[name]
        assert found[name][0] == ranks[0][name][0], "the ranks differ"
        for mine, theirs in zip(found[name][0], metrics, strict=True):
            assert_near(mine, theirs)
        assert_near(found[name][1], {} if rank else weights)
        np.testing.assert_allclose(found[name][2], scores, atol=1e-5)
        for column in ("advantages", "logprobs", "entropies"):
            mine, theirs = (getattr(r, column) for r in (found[name][3], record))
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_is_continued_by_another_number_of_ranks(name, two, three, folder):
    """Two ranks' by one process and by three ranks, and one process's by two ranks."""
    metrics, weights = two[0][f"save {name}"]
    alone = asyncio.run(resumed(CASES[name], folder, folder / f"two-{name}"))
    continued = alone, three[0][f"resume {name}"], two[0][f"resume {name}"]
    for state, version, theirs, found in continued:
        assert (state, version) == ({"mine": 7}, 3)
        assert_near(theirs, metrics)
        assert_near({k: np.asarray(x) for k, x in found.items()}, weights)


def test_each_rank_writes_the_rows_that_it_keeps(two, folder):
    """AdamW's two averages, the float32 weights, and the reference model of the KL penalty."""
    saved = folder / "two-grpo-kl"
    counts = [sum(x.numel() for x in load_file(f).values()) for f in (saved / SHARDS).iterdir()]
    model = AutoModelForCausalLM.from_pretrained(saved)
    assert sum(counts) == 4 * sum(p.numel() for p in model.parameters())
    assert max(counts) < 0.55 * sum(counts)
    state = load_trainer_state(saved)["learner"]
    assert [x.numel() for x in tensors_in(state) if x.numel() > 1] == [5056], "torch's generator"


def tensors_in(state):
    if isinstance(state, dict):
        return [x for value in state.values() for x in tensors_in(value)]
    return [state] if isinstance(state, torch.Tensor) else []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "the file of a rank is missing"), (b"", "cannot be read"), (b"xx", "cannot be read")],
)
def test_a_checkpoint_without_the_rows_of_a_rank_is_refused(
    content, message, two, folder, tmp_path
):
    shutil.copytree(folder / "two-grpo-kl", tmp_path / "c")
    path = sorted((tmp_path / "c" / SHARDS).iterdir())[1]
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        asyncio.run(resumed(CASES["grpo-kl"], folder, tmp_path / "c"))


def test_transformers_loads_a_checkpoint_of_ranks(two, folder):
    saved = folder / "two-grpo-kl"
    model = AutoModelForCausalLM.from_pretrained(saved)
    (path,) = saved.glob("*.safetensors")
    for name, x in load_file(path).items():
        assert (model.state_dict()[name] == x).all()


def test_all_ranks_raise_what_keeps_the_first_from_saving(two):
    first, second = (found["unwritable"] for found in two)
    assert first == second
    assert "cannot be written" in first

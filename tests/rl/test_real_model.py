"""A real pretrained model is evaluated and trained, by both policies: ``pytest -m real``.

``TURNWISE_REAL_MODEL`` names its folder, in the Hugging Face layout, of some hundred million
parameters; ``TURNWISE_VLLM_PYTHON`` an interpreter with vLLM. Minutes on a CPU.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys

import pytest
import torch

import rl.eval
import rl.train

pytestmark = pytest.mark.real
SHORT = (
    "sampling.max_tokens=12",
    "sampling.slots=4",
    "context_length=512",
    "env.max_turns=1",
)


@pytest.fixture(scope="module")
def real_model():
    folder = os.environ.get("TURNWISE_REAL_MODEL")
    if not folder:
        pytest.skip("TURNWISE_REAL_MODEL names no folder of a real model")
    return folder


@pytest.fixture(params=["local", "vllm-server"])
def policy(request):
    """The words that choose a policy."""
    if request.param == "local":
        return ["policy=local"]
    python = os.environ.get("TURNWISE_VLLM_PYTHON")
    if not python and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here, and TURNWISE_VLLM_PYTHON names no interpreter")
    return ["policy=vllm-server", f"policy.python={python or sys.executable}"]


@pytest.fixture
def problems(tmp_path):
    """Sums, in the layout of MATH-500."""
    path = tmp_path / "sums.jsonl"
    rows = [{"problem": f"What is {n} + {n + 3}?", "answer": str(2 * n + 3)} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ["env=math", f"env.tasks={path}"]


def test_a_real_model_is_evaluated(real_model, policy, problems, tmp_path):
    words = [*problems, *policy, *SHORT, f"model={real_model}", "tasks=2", f"out={tmp_path}/eval"]
    assert rl.eval.main(words) == 0
    result = json.loads((tmp_path / "eval" / "result.json").read_text(encoding="utf-8"))
    assert 0 <= result["success"] <= 1


def test_a_real_model_is_trained(real_model, policy, problems, tmp_path):
    out = tmp_path / "run"
    words = [*problems, *policy, *SHORT, f"model={real_model}", f"out={out}", "steps=2"]
    words += ["prompts=2", "group_size=2", "eval.tasks=0", "eval.test_tasks=0", "save_every=2"]
    # Every step has a gradient, also where no answer is right.
    words += ["algo.entropy_coef=1e-3", "optimizer.lr=1e-6"]
    assert rl.train.main(words) == 0
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "num_tokens" in record]
    assert len(steps) == 2
    assert all(record["failed_episodes"] == 0 for record in steps)
    for record in steps:
        assert record["grad_norm"] > 0
        assert record["sampling/logp_difference_max"] < 1e-2


def test_a_stale_layer_of_a_real_model_is_seen(real_model):
    """After one update at 1e-6, whichever layer it is; the tolerance lets the noise pass."""
    from rl.learner.model import (
        NOISE_MARGIN,
        NOISE_TOKENS,
        load_model,
        score_tokens,
        scoring_noise,
        tolerance_of,
    )

    model = load_model(real_model)
    bound = tolerance_of(model)
    assert NOISE_MARGIN * scoring_noise(model, seed=1) < 5 * bound
    probe = torch.randint(100, 10_000, (NOISE_TOKENS,), generator=torch.Generator().manual_seed(0))
    expected = torch.tensor(score_tokens(model, probe.tolist(), 1.0))
    count = model.config.num_hidden_layers
    for layer in (0, count // 2, count - 1):
        own = [p for name, p in model.named_parameters() if f"layers.{layer}." in name]
        kept = copy.deepcopy([p.detach() for p in own])
        generator = torch.Generator().manual_seed(layer)
        with torch.no_grad():
            for p in own:
                p.add_(1e-6 * torch.randn(p.shape, generator=generator).sign())
        found = torch.tensor(score_tokens(model, probe.tolist(), 1.0))
        assert (found - expected).abs().max() > bound
        with torch.no_grad():
            for p, old in zip(own, kept, strict=True):
                p.copy_(old)

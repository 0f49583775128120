"""The main job with vLLM's engine in the trainer's own process, where this interpreter has vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed for this interpreter")
HOME = Path(__file__).resolve().parents[2]


def test_a_run_samples_from_the_engine_and_each_update_is_proved(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, toy_envs\n"
        "from rl.train import main\n"
        "if __name__ == '__main__':\n"
        "    toy_envs.register()\n"
        "    sys.exit(main())\n"
    )
    out = tmp_path / "run"
    settings = {"env": "toy-copy", "model": "tiny", "policy": "vllm-engine", "steps": 3}
    settings |= {"prompts": 6, "group_size": 4, "sampling.max_tokens": 3, "sampling.slots": 24}
    settings |= {"eval.every": 100, "eval.tasks": 6, "eval.test_tasks": 0, "out": out}
    settings |= {"tiny.demonstrations": 200, "tiny.steps": 60, "tiny.vocab_size": 261}
    settings |= {"tiny.context_length": 64, "tiny.num_layers": 1, "sampling.temperature": 0.9}
    settings |= {"policy.arguments": "seed=4711", "policy.weights": tmp_path / "weights"}
    path = os.pathsep.join(map(str, (HOME, HOME / "tests" / "helpers")))
    ran = subprocess.run(
        [sys.executable, str(script), *(f"{key}={value}" for key, value in settings.items())],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=540,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    reported = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in reported if "loss" in record]
    assert len(steps) == 3
    for record in steps:
        assert 0 < record["sync/max_difference"] < 1e-4
        assert (record["policy/restarts"], record["policy/reissued"]) == (0, 0)
    # A step without a gradient scores nothing.
    scored = [r for r in steps if r["unscored_tokens"] < r["num_tokens"]]
    assert scored
    assert all(record["sampling/logp_difference_max"] < 1e-3 for record in scored)
    facts = json.loads((out / "versions.json").read_text())
    assert (facts["policy"], facts["vllm"][:2]) == ("vllm-engine", "0.")
    assert "seed=4711" in (out / "logs" / "vllm-engine.log").read_text()
    # It leaves nothing, and complains of nothing that it lost.
    assert "Traceback" not in ran.stderr
    assert "leaked" not in ran.stderr
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_run_that_cannot_have_it_says_so_in_one_line(tmp_path):
    words = [sys.executable, "-m", "rl.train", "policy=vllm-engine", f"out={tmp_path / 'run'}"]
    ran = subprocess.run(
        [*words, "device=cpu", "policy.sleep=true"],
        capture_output=True,
        text=True,
        cwd=HOME,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "error: policy.sleep (True) must be False on a CPU: it frees a GPU's memory"
    )

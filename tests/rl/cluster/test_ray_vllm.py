"""Learner and real vLLM servers on another machine, by one command, which survives faults there."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import toy_envs

import rl.eval
import rl.run.trainer
from benchmarks.serving.chaos import disturbed
from benchmarks.serving.chaos_cluster import CLUSTER
from benchmarks.serving.far_machine import THERE, FarMachine, can_be_made
from rl.run.folder import read_jsonl
from rl.train import main

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TINY = {"model": "tiny", "tiny.demonstrations": 200, "tiny.steps": 60, "tiny.num_layers": 1}
TINY |= {"tiny.vocab_size": 261, "tiny.context_length": 64}
SETTINGS = {"steps": 4, "save_every": 1, "sampling.temperature": 0.9, "learner.ranks": 2}
SERVED = {"policy": "vllm-server", "policy.replicas": 2}
COLLECTED = {"collectors": 2, "env": f"{Path(toy_envs.__file__)}:CopyEnv"}


def servers_there():
    """Process ids of vLLM's front ends that listen at the far machine's address."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vllm.entrypoints.openai.api_server" in command and THERE.encode() in command:
            found.append(int(entry.name))
    return found


def collectors_there():
    """Names of the actors that play episodes, by the kernel."""
    return [p for p in Path("/proc").glob("[0-9]*/comm") if "ray::Collector" in _read(p)]


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_run_with_all_its_processes_there_survives_a_killed_server(words, tmp_path, monkeypatch):
    python = os.environ.get("TURNWISE_VLLM_PYTHON")
    if not python or not can_be_made():
        pytest.skip("needs TURNWISE_VLLM_PYTHON, root, and the programs ip and unshare")
    rollout, seen = rl.run.trainer.Trainer.rollout, []

    async def killing(self, step):
        if step == 2:
            assert len(collectors_there()) == 2
            seen.extend(servers_there())
            os.kill(seen[0], signal.SIGKILL)
        return await rollout(self, step)

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    with FarMachine(tmp_path, cpus=6) as machine:
        for name, value in machine.environment.items():
            monkeypatch.setenv(name, value)
        there = {"cluster": "ray", "cluster.address": machine.address}
        settings = TINY | SETTINGS | SERVED | COLLECTED | there
        assert main(words(tmp_path / "run", **settings, **{"policy.python": python})) == 0
        assert not servers_there()
        # The servers of an evaluation are there as well.
        played = SERVED | there | {"policy.python": python, "policy.replicas": 1}
        played |= COLLECTED | {"model": tmp_path / "run", "tasks": 8, "out": tmp_path / "ev"}
        assert rl.eval.main([f"{key}={value}" for key, value in played.items()]) == 0
        assert not servers_there()
        assert not collectors_there()
    [log] = (tmp_path / "ev" / "logs").glob("*.log")
    assert THERE in log.read_text()
    assert json.loads((tmp_path / "ev" / "result.json").read_text())["episodes"] == 8
    assert len(seen) == 2, "each replica is placed once"
    steps = [r for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert [r["step"] for r in steps] == [1, 2, 3, 4]
    assert sum(r["policy/restarts"] for r in steps) == 1
    assert all(0 < r["sync/max_difference"] < 1e-4 for r in steps)
    scored = [r for r in steps if r["unscored_tokens"] < r["num_tokens"]]
    assert scored and all(r["sampling/logp_difference_max"] < 1e-3 for r in scored)


@pytest.mark.nightly
def test_a_run_outlives_the_loss_of_its_ranks_and_servers(words, plugged, tmp_path, monkeypatch):
    """The machine of both is cut off and starts again; the chaos benchmark has more faults."""
    python = os.environ.get("TURNWISE_VLLM_PYTHON")
    if not python or not can_be_made():
        pytest.skip("needs TURNWISE_VLLM_PYTHON, root, and the programs ip and unshare")
    monkeypatch.setenv("PYTHONPATH", plugged["PYTHONPATH"])
    tiny = {**TINY, "policy.python": python, "eval.every": 1000, "eval.test_tasks": 0}
    given = words(tmp_path / "unused", **tiny)
    own = [word for word in given if word.split("=")[0] not in ("out", "steps", "save_every")]
    plan = replace(CLUSTER, faults={"lose the machine": 1})
    report = disturbed(tmp_path, own, plan, minutes=0, seed=0)
    assert report["wrong"] == []
    assert report["replay"] == {"steps": report["steps"], "equal": True, "max_difference": 0}
    assert not any(report["left"].values())

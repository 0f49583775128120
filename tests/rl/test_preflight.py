"""What can be refused is refused before the warm start, the model and the run's steps."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

# Imported while its parts are patched, each would keep the patches.
import rl.learner.checkpoint
import rl.learner.local
import rl.learner.registration
import rl.preferences.judge_model
import rl.preferences.learner
import rl.preferences.training
import rl.rollout.vine
import rl.runtime.runtime
from rl.tracking.sink import SINKS, Sink, register_sink

TINY = ["env=toy-copy", "model=tiny"]
TRAIN = ["rl.train", *TINY, "eval.tasks=0", "eval.test_tasks=0"]
PAIRS = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4


class AbsentSink(Sink):
    package, extra = "no_such_package", "turnwise[x]"

    def open(self, run, id):
        raise NotImplementedError

    def log(self, step, metrics):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """A sink whose package is absent, and a learner that cannot be imported, while a test runs."""
    for registry in (SINKS, rl.learner.registration._registry):
        monkeypatch.setattr(registry, "_lazy", dict(registry._lazy))
        monkeypatch.setattr(registry, "_objects", dict(registry._objects))
    register_sink("absent", AbsentSink)
    rl.learner.registration.register("absent", "no_such_module:open")


@pytest.fixture
def files(tmp_path):
    """A folder with what the commands are given."""
    (tmp_path / "broken_env.py").write_text("class MyEnv(\n")
    (tmp_path / "bad.jsonl").write_text('{"messages": 3}\n')
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "script.py").write_text("def say(messages, rng):\n    return 'x'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return tmp_path


REFUSALS = {
    "vllm": (
        TRAIN,
        "policy=vllm-server policy.python=F/python",
        "it is not installed for ",
    ),
    "vllm's interpreter": (
        *(TRAIN, "policy=vllm-server policy.python=F/nothing"),
        "must be a Python interpreter with vLLM, and cannot be started: No such file",
    ),
    "folder of weights": (
        *(TRAIN, "policy=vllm-server policy.weights=F/file/x policy.url=http://localhost:1"),
        "policy.weights (F/file/x) cannot be created or written",
    ),
    "peft": (TRAIN, "lora.rank=4", "needs PEFT: pip install 'turnwise[lora]'"),
    "bitsandbytes": (TRAIN, "optimizer.state_bits=8", "bitsandbytes"),
    "ray": (TRAIN, "cluster=ray", "cluster=ray needs Ray: pip install 'turnwise[ray]'"),
    "sink": (TRAIN, "log=absent", "log=absent needs the package 'no_such_package': pip install"),
    "callback": (TRAIN, "callbacks=nothing", "callbacks (nothing): unknown callback 'nothing'"),
    "backup": (TRAIN, "backup=nothing://x", "backup (nothing://x) cannot be used"),
    "algorithm": (TRAIN, "algo=grpoo", "unknown algorithm 'grpoo'. Did you mean 'grpo'"),
    "shaping": (TRAIN, "shaping=nothing", "unknown reward 'nothing'"),
    "judge": (TRAIN, "shaping=judge(model='m',url='http://x',key='NOT_SET')", "NOT_SET"),
    "environment": (["rl.train"], "env=F/broken_env.py:MyEnv", "broken_env.py"),
    "tool": (["rl.train"], "env=math env.tools=calculater", "Did you mean 'calculator'?"),
    "sandbox": (["rl.train"], "env=code-sandbox env.sandbox=nothing", "nothing"),
    "run folder": (TRAIN, "out=F/file/run", "out (F/file/run) cannot be created or written"),
    "learner": (TRAIN, "learner=absent", "no_such_module"),
    "context": (TRAIN, "context_length=9999", "must be at most tiny.context_length (1024)"),
    "texts": (TRAIN, "algo=grpo algo.ptx_coef=0.1 texts.data=F/bad.jsonl", "bad.jsonl, line 1"),
    "difficulty": (
        *(["rl.train", "env=toy-returns", "model=tiny"], "curriculum.order=easy-to-hard"),
        "write its difficulty(task_index)",
    ),
    "partner's role": (
        *(TRAIN, "partner=script partner.role=x partner.function=F/script.py:say"),
        "partner.role (x) is no role of toy-copy-v0",
    ),
    "partner's function": (
        *(["rl.train", "env=support", "env.customer=role"],),
        "partner=script partner.role=customer partner.function=F/script.py:nothing",
        "nothing",
    ),
    "partner's model": (
        *(["rl.train", "env=support", "env.customer=role"],),
        "partner=local partner.role=customer partner.model=F/nothing",
        "partner.model (F/nothing) does not exist",
    ),
    "model": (["rl.train", "env=toy-copy"], "model=F/nothing", "model (F/nothing) does not exist"),
    "reward model of rl.eval": (
        *(["rl.eval", *TINY], "episodes=2 reward_model=F/nothing"),
        "reward_model (F/nothing) does not exist",
    ),
    "another model of rl.eval": (["rl.eval", *TINY], "compare=F/nothing", "compare (F/nothing)"),
    "vllm of rl.eval": (
        *(["rl.eval", *TINY], "policy=vllm-server policy.python=F/python"),
        "it is not installed for ",
    ),
    "vllm of rl.distill": (
        *(["rl.distill", *TINY], "policy=vllm-server policy.python=F/python"),
        "it is not installed for ",
    ),
    "vllm of rl.sft": (
        *(["rl.sft", *TINY], "policy=vllm-server policy.python=F/python"),
        "it is not installed for ",
    ),
    "data of rl.sft": (["rl.sft", *TINY], "data=F/bad.jsonl", "bad.jsonl, line 1"),
    "callback of rl.sft": (["rl.sft", *TINY], "callbacks=nothing", "unknown callback 'nothing'"),
    "data of rl.dpo": (["rl.dpo", "model=F/model"], "data=F/nothing", "data (F/nothing) must be"),
    "centre of rl.reward_model": (
        *(["rl.reward_model", "model=F/model"], "data=F/pairs.jsonl center=F/nothing"),
        "center (F/nothing) must be",
    ),
    "data of rl.judge": (["rl.judge", "model=F/model"], "data=F/nothing", "data (F/nothing) must"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_before_anything_costs_a_second(name, files, tmp_path, monkeypatch, capfd):
    command, words, says = REFUSALS[name]
    absent = ("peft", "bitsandbytes", "ray")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda n, *a: None if n in absent else find_spec(n, *a)
    )
    monkeypatch.chdir(tmp_path)

    def costs(*args, **named):
        raise AssertionError("it was too late")

    for place in (
        "rl.runtime.learner.make_tiny",
        "rl.runtime.runtime.open_learner",
        "rl.learner.model.load_model",
        "rl.preferences.training.open_preferences",
        "rl.rollout.collector.play_episodes",
        "rl.preferences.judge_model.load_judge",
    ):
        monkeypatch.setattr(place, costs)
    main = importlib.import_module(command[0]).main
    asked = [w.replace("F/", f"{files}/") for w in (*command[1:], *words.split())]
    assert main(asked) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert says.replace("F/", f"{files}/") in error
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))

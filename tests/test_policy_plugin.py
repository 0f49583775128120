"""Policy engines of a package of its own: the one on docs/plugins.md, and one with a server.

A distribution is a folder with a ``dist-info`` on the import path. The commands run in processes of
their own, so that no name stays registered in this one.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import warm_start
from safetensors.torch import load_file
from toy_engine import Toy

import rl
from rl.errors import UsageError
from rl.policies.engine import PolicyEngine
from rl.policies.registration import find_policy, policy_names, register_policy
from rl.run.folder import read_jsonl
from rl.settings.lora import NO_LORA
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig
from tools.registry import UnknownNameError

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## A policy engine\n")[1].split("\n## ")[0]
SHORT = """
    env=code-sandbox model=tiny tiny.demonstrations=60 tiny.steps=30 tiny.warmup_steps=1
    tiny.hidden_size=24 tiny.num_layers=1 tiny.context_length=512 env.max_turns=1 steps=2 prompts=2
    group_size=4 eval.every=2 eval.tasks=0 eval.test_tasks=0 sampling.max_tokens=32 threads=1
    optimizer.lr=1e-2 optimizer.warmup_steps=0 shaping=overlong(max_length=32,cache=30)
    allow_unsafe=true
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the page's module, and the files that an installer writes beside it."""
    home = tmp_path_factory.mktemp("installed")
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    (home / "copied_engine.py").write_text(code)
    info = home / "engines-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engines\nVersion: 1.0\n")
    ((group, names),) = tomllib.loads(text)["project"]["entry-points"].items()
    names |= {"toy": "toy_engine:Toy", "broken": "no_such_module:Engine"}
    lines = "".join(f"{name} = {value}\n" for name, value in names.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    return home


def train(home, *words, short=True):
    path = os.pathsep.join(map(str, (home, ROOT, ROOT / "tests" / "helpers")))
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TURNWISE_CACHE": str(home / "cache")}
    command = ["-m", "rl.train", *(SHORT.split() if short else ()), *words]
    return warm_start.run(command, cwd=home, env=os.environ | own, timeout=900)


def weights(run):
    return load_file(run / "checkpoints" / "step-000002" / "model.safetensors")


@pytest.fixture(scope="module")
def run_with(installed):
    """From the words that choose a policy to the folder of a run of the main job with it."""
    folders = {}

    def run_with(*words):
        if words not in folders:
            folders[words] = installed / "-".join(word.partition("=")[2] for word in words)
            done = train(installed, *words, f"out={folders[words]}")
            assert done.returncode == 0, done.stderr[-2000:]
        return folders[words]

    return run_with


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("policy=copied", "policy.slots=4"), ("policy=toy",), ("policy=toy", "collectors=2")]
)
def test_an_engine_of_a_package_trains_the_main_job_as_the_local_policy_does(run_with, words):
    local, other = run_with("policy=local"), run_with(*words)
    # The lengths of the answers are rewarded, so that both steps have a gradient.
    assert all(line["grad_norm"] > 0 for line in read_jsonl(local / "metrics.jsonl"))
    ours, theirs = weights(local), weights(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        # The sampled tokens are equal; the last bits of a log-probability may differ.
        torch.testing.assert_close(theirs[name], ours[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_servers_are_verified_after_each_update(run_with):
    records = read_jsonl(run_with("policy=toy") / "metrics.jsonl")
    differences = [r["sync/max_difference"] for r in records if "sync/max_difference" in r]
    assert len(differences) == 2
    assert max(differences) < 1e-4


@pytest.mark.slow
def test_a_run_records_the_engine_and_its_settings(installed, run_with):
    out = run_with("policy=copied", "policy.slots=4")
    recorded = json.loads((out / "config.json").read_text())["policy"]
    assert recorded == {"name": "copied", "settings": {"slots": 4}}
    again = train(installed, f"resume={out}", "dry_run=true", short=False)
    assert again.returncode == 0, again.stderr
    assert {"policy=copied", "policy.slots=4"} <= set(again.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("policy=copid", "unknown policy 'copid'. Did you mean 'copied'?"),
        ("policy=broken", "advertised by engines as 'no_such_module:Engine', fails to import"),
    ],
)
def test_a_wrong_name_is_one_line(installed, word, line):
    done = train(installed, word)
    assert done.returncode != 0
    (error,) = done.stderr.splitlines()
    assert line in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("policy.server=2", "Did you mean 'policy.servers'"),
        ("policy.load_s=0", r"policy\.load_s \(0\.0\) must be above 0"),
        ("policy.start_s=7200", r"stall_s \(3600\) must be above policy\.start_s"),
        ("deterministic=true", "deterministic needs policy=local"),
    ],
)
def test_a_wrong_setting_is_named(words, message):
    register_policy("toy", Toy)
    with pytest.raises(UsageError, match=message):
        parse(TrainConfig, ["policy=toy", *words.split()], command="train", presets={})


def test_a_context_without_room_for_the_probe_is_rejected():
    register_policy("toy", Toy)
    words = ["policy=toy", "context_length=63"]
    config = parse(TrainConfig, words, command="train", presets={})
    with pytest.raises(UsageError, match=r"context_length \(63\) must be at least 64"):
        config.policy.settings.check(config, torch.device("cpu"), NO_LORA)


@pytest.mark.slow
def test_help_shows_the_settings_of_an_engine(installed):
    done = train(installed, "policy=copied", "--help", short=False)
    shown = " ".join(done.stdout.split())
    assert "policy.slots 16" in shown
    assert "Requests that are computed at once." in shown


def test_names_are_listed_and_unknown_ones_are_rejected():
    assert {"local", "vllm-engine", "vllm-server"} <= set(policy_names())
    with pytest.raises(UnknownNameError, match="Did you mean 'vllm-server'"):
        find_policy("vllm-sever")


@dataclass(frozen=True, kw_only=True)
class Fixed(PolicyEngine):
    """An engine without settings."""

    async def open(self, context):
        raise NotImplementedError


def test_an_engine_is_registered_in_one_process():
    register_policy("fixed", Fixed)
    assert find_policy("fixed") is Fixed
    config = rl.TrainConfig(policy="fixed")
    assert config.policy.settings == Fixed()
    with pytest.raises(ValueError, match="policy 'local' is registered already"):
        register_policy("local", Fixed)


class Unfinished(PolicyEngine):
    """An engine that cannot be opened."""


@dataclass(frozen=True, kw_only=True)
class Demanding(Fixed):
    """An engine with a setting that has no default."""

    url: str


class Plain(Fixed):
    """An engine whose fields would not be settings."""


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (dict, "<class 'dict'> is not a subclass of rl.policies.engine.PolicyEngine"),
        (Unfinished, "Unfinished does not implement open"),
        (Plain, "Plain is not a frozen dataclass"),
        (Demanding, "Demanding.url has no default value"),
    ],
)
def test_a_class_that_is_no_engine_is_rejected(engine, message):
    with pytest.raises(TypeError, match=message):
        register_policy(engine.__name__.lower(), engine)

"""GPUs of servers that a run starts, with faked numbers of GPUs."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from rl.errors import UsageError
from rl.policies.devices import Servers, gpus_of_servers, visible_gpus
from rl.policies.memory import DeviceFacts
from rl.settings.lora import NO_LORA
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

UUIDS = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-aa", "MIG-bb"]


@pytest.fixture
def machine(monkeypatch):
    """A function that fakes GPUs: how many, and the variable that selects them."""

    def set_up(count, visible=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    return set_up


def config(*words):
    return parse(TrainConfig, ["policy=vllm-server", *words], command="train", presets={})


def gpus(*words, device="cuda"):
    settings = config(*words).policy.settings
    settings.check(config(*words), torch.device(device), NO_LORA)
    return settings._gpus(torch.device(device))


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (3, None, ["0", "1", "2"]),
        (2, "5, 3", ["5", "3"]),
        (3, ",".join(UUIDS), UUIDS),
        # CUDA sees nothing from an unknown name on.
        (1, "2,-1,3", ["2"]),
        (0, "", []),
    ],
)
def test_visible_gpus_have_the_names_of_the_variable(machine, count, visible, expected):
    machine(count, visible)
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    ("device", "servers", "visible", "expected"),
    [
        ("cuda", Servers(1), ["0", "1"], ["1"]),
        ("cuda:0", Servers(3), ["7", "6", "5", "4"], ["6", "5", "4"]),
        ("cuda:1", Servers(2), ["0", "1", "2"], ["0", "2"]),
        ("cuda", Servers(2), UUIDS, UUIDS[1:]),
        ("cuda", Servers(2, gpus_each=2), list("01234"), ["1,2", "3,4"]),
        ("cuda:1", Servers(1, share=True), ["3", "GPU-aa"], ["GPU-aa"]),
        ("cuda:0", Servers(2, ranks=2), list("0123"), ["2", "3"]),
    ],
)
def test_no_server_has_the_learners_gpu_unless_it_shares_it(device, servers, visible, expected):
    assert gpus_of_servers(torch.device(device), servers, visible) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["policy.replicas=2"], ["b", "c"]),
        (["policy.arguments=--tensor-parallel-size 2"], ["b,c"]),
        (["policy.arguments=-tp=2 -dp=1"], ["b,c"]),
        (["policy.sleep=true"], ["a"]),
        (["policy.gpu_memory=0.3", "staleness=1"], ["a"]),
        (["policy.transfer=ipc"], ["a"]),
        (["policy.transfer=nccl"], ["b"]),
    ],
)
def test_settings_decide_where_servers_compute(machine, words, expected):
    machine(3, "a,b,c")
    assert gpus(*words) == expected


@pytest.mark.parametrize(
    ("count", "words", "message"),
    [
        (
            1,
            [],
            r"^policy\.replicas \(1\): 1 server\(s\) need 1 GPU\(s\) beside the learner's, cuda; "
            r"this process sees 1 in total \(CUDA_VISIBLE_DEVICES is not set\): "
            r"give policy\.sleep=true, to take turns on the learner's GPU$",
        ),
        (1, ["staleness=1"], r"give policy\.gpu_memory=0\.4, to share the learner's GPU$"),
        (1, ["policy.replicas=2"], r"give policy\.replicas=1 policy\.sleep=true, "),
        (3, ["policy.replicas=3"], r"need 3 GPU\(s\) .* sees 3 in total .* policy\.replicas=2$"),
        (2, ["policy.arguments=-tp 2"], r"need 2 GPU\(s\) beside .* give policy\.sleep=true"),
        (4, ["policy.sleep=true", "policy.replicas=2"], r"policy\.replicas \(2\) must be 1, with"),
        (4, ["policy.sleep=true", "policy.arguments=-tp 2"], r"one GPU \(2 by policy\.arguments\)"),
    ],
)
def test_too_few_gpus_are_refused_with_the_fix(machine, count, words, message):
    machine(count)
    with pytest.raises(UsageError, match=message):
        gpus(*words)


def test_servers_by_url_and_on_a_cpu_need_no_gpu_here(machine):
    machine(1)
    for device, words in (("cuda", ["policy.url=http://other:8000"]), ("cpu", [])):
        settings = config(*words).policy.settings
        settings.check(config(*words), torch.device(device), NO_LORA)


@pytest.mark.parametrize("word", ["policy.sleep=true", "policy.gpu_memory=0.5"])
def test_a_server_by_url_has_its_own_memory_settings(word):
    with pytest.raises(UsageError, match=r"is for servers that the run starts, not policy\.url"):
        config("policy.url=http://other:8000", word)


def memory(*words):
    facts = DeviceFacts(100 << 30, True, 1 << 30, lambda: 0, slots=64, ahead=False)
    return config(*words).policy.settings.device_memory(facts)


def test_the_plan_counts_a_server_on_the_learners_gpu():
    assert memory().generating == 0
    assert memory("policy.gpu_memory=0.5").generating == 50 << 30
    shared = memory("policy.sleep=true")
    assert shared.generating == 40 << 30
    assert 0 < shared.learning < 4 << 30

"""Errors for a policy that is impossible here, before slow work starts."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from rl.errors import UsageError
from rl.learner.registration import register
from rl.policies.memory import DeviceFacts, PolicyMemory
from rl.settings.lora import NO_LORA, LoraConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

register("far", "far_learner:open")


def config(*words):
    policy = [] if any(w.startswith("policy=") for w in words) else ["policy=vllm-engine"]
    return parse(TrainConfig, [*policy, *words], command="train", presets={})


def check_policy(config, device, lora=NO_LORA):
    config.policy.settings.check(config, device, lora)


@pytest.fixture
def with_vllm(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_an_engine_that_is_not_installed_is_said_with_the_fix(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs vLLM in this interpreter: pip install .*policy="):
        check_policy(config(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("words", "device", "message"),
    [
        (["policy.sleep=true"], "cpu", r"policy\.sleep \(True\) must be False on a CPU"),
        (
            ["context_length=63"],
            "cpu",
            r"context_length \(63\) must be at least 64 with policy",
        ),
        (["sampling.top_p=0.9"], "cpu", r"top_p \(0\.9\) must be 1 .* with vLLM on a CPU"),
        (["sampling.top_k=9"], "cpu", r"sampling\.top_k \(9\) 0 with vLLM on a CPU"),
        (["sampling.top_p=0.9"], "cuda", r"sampling\.top_k \(0\) must be above 0 with vLLM"),
        (["sampling.top_k=9"], "cuda", r"eval\.top_k \(0\) and eval\.temperature \(1\.0\) must be"),
        (
            ["sampling.top_k=9", "eval.top_k=9", "eval.temperature=0"],
            "cuda",
            r"eval\.temperature \(0\.0\) must be above 0",
        ),
        (
            ["policy=vllm-server", "policy.transfer=nccl"],
            "cuda",
            r"beside the learner's, cuda; .* give policy\.transfer=ipc policy\.sleep=true, to",
        ),
        (["policy.transfer=ipc"], "cpu", r"policy\.transfer \(ipc\) must be files on a cpu"),
        (["policy.transfer=nccl"], "cuda", r"transfer \(nccl\) must be ipc .*: both share a GPU"),
        (
            ["policy.transfer=ipc", "policy.weights=/w"],
            "cuda",
            r"policy\.weights \(/w\) must be empty with policy\.transfer \(ipc\)",
        ),
        (
            ["policy.transfer=ipc", "learner=far"],
            "cuda",
            r"policy\.transfer \(ipc\) must be files with learner=far",
        ),
        ([], "cuda:1", r"device \(cuda:1\) must be cuda .* CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_what_the_machine_does_not_allow_is_said(with_vllm, words, device, message):
    with pytest.raises(UsageError, match=message):
        check_policy(config(*words), torch.device(device))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_what_it_allows_is_let_pass(with_vllm, device):
    words = [] if device == "cpu" else ["policy.sleep=true"]
    check_policy(config(*words), torch.device(device))


def test_a_transfer_needs_vllm_here_too(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["policy=vllm-server", "policy.transfer=nccl"]
    with pytest.raises(
        UsageError, match=r"transfer \(nccl\) needs vLLM in this interpreter .* pip"
    ):
        check_policy(config(*words), torch.device("cuda:1"))


def test_an_adapter_is_handed_over_as_files(with_vllm):
    words = ["policy=vllm-server", "policy.transfer=nccl"]
    with pytest.raises(UsageError, match=r"transfer \(nccl\) must be files with lora\.rank \(8\)"):
        check_policy(config(*words), torch.device("cuda"), LoraConfig(rank=8))


def test_a_cut_that_nothing_is_trained_on_is_let_pass(with_vllm):
    check_policy(config("eval.top_p=0.9", "eval.top_k=5"), torch.device("cpu"))
    words = ["policy=vllm-server", "sampling.top_p=0.9", "sampling.top_k=20"]
    check_policy(config(*words, "policy.url=http://gpu:8000"), torch.device("cpu"))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("policy.arguments=foo", r"policy\.arguments \('foo'\) must be words like max_num_seqs=32"),
        ("policy.arguments=dtype=half", r"must not set dtype: use dtype="),
        ("policy.arguments=--logprobs-mode=raw_logprobs", "must not set logprobs_mode: training"),
        ("policy.gpu_memory=1", r"policy\.gpu_memory \(1\.0\) must be above 0 and below 1"),
        ("policy.stall_s=0", r"policy\.stall_s \(0\.0\) must be above 0"),
        ("policy.start_s=7200", r"^stall_s \(3600\) must be above policy\.start_s \(7200\), "),
        ("policy.load_s=3600", r"^stall_s \(3600\) must be above policy\.load_s \(3600\), "),
        ("stall_s=601 policy.stall_s=700", r"^stall_s \(601\) must be above policy\.stall_s "),
    ],
)
def test_wrong_settings_are_named(word, message):
    with pytest.raises(UsageError, match=message):
        config(*word.split())


def test_a_watchdog_that_is_off_or_waits_longer_contradicts_nothing():
    assert config("stall_s=0", "policy.start_s=7200").stall_s == 0
    assert config("stall_s=7201", "policy.start_s=7200").stall_s == 7201


def test_an_engine_does_not_sleep_while_it_is_asked():
    for policy in ("vllm-engine", "vllm-server"):
        with pytest.raises(UsageError, match=r"policy\.sleep must be False with staleness above 0"):
            config(f"policy={policy}", "policy.sleep=true", "staleness=1")
    assert config("policy.sleep=true").policy.settings.sleep


@pytest.mark.parametrize(
    ("cores", "alone", "threads"), [(8, True, 7), (8, False, 4), (2, False, 1), (1, True, 1)]
)
def test_vllm_leaves_cores_to_its_scheduler_and_to_a_learner_beside_it(cores, alone, threads):
    chosen = config(f"threads={cores}")
    context = SimpleNamespace(
        config=chosen,
        learner=SimpleNamespace(facts=SimpleNamespace(adapter=None, dtype="float32", device="cpu")),
        thread=object() if alone else None,
        context_window=64,
    )
    assert chosen.policy.settings.start_config(context, "m").threads == threads


def test_several_processes_sample_on_a_cpu_and_not_deterministically():
    words = ["policy=local", "policy.processes=2"]
    check_policy(config(*words), torch.device("cpu"))
    with pytest.raises(UsageError, match=r"policy\.processes=2 samples on a CPU, device is cuda"):
        check_policy(config(*words), torch.device("cuda"))
    with pytest.raises(UsageError, match=r"deterministic=true samples in one process"):
        check_policy(config(*words, "deterministic=true"), torch.device("cpu"))
    facts = DeviceFacts(0, False, 100, lambda: 3, slots=4, ahead=False)
    # The second process's copy, and the one in shared memory.
    assert config(*words).policy.settings.device_memory(facts) == PolicyMemory(212, 212)
    assert config("policy=local").policy.settings.device_memory(facts) == PolicyMemory(12, 12)

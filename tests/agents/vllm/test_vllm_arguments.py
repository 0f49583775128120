"""vLLM's start arguments, for a server and for the engine."""

from __future__ import annotations

import dataclasses

import pytest

from agents.vllm import EngineConfig, ServerConfig
from agents.vllm.arguments import as_words, parse_pairs
from agents.vllm.server_process import command_line


def test_pairs_are_json_or_words():
    text = 'max_num_seqs=32 enable_prefix_caching=false --block-size=16 tokenizer_mode=slow x="a b"'
    expected = {"max_num_seqs": 32, "enable_prefix_caching": False, "block_size": 16}
    assert parse_pairs(text) == expected | {"tokenizer_mode": "slow", "x": "a b"}
    with pytest.raises(ValueError, match="lacks a closing quotation mark"):
        parse_pairs('x="a')


def test_an_engine_and_a_server_get_the_same_arguments():
    config = EngineConfig(model="m", context_window=64, arguments={"block_size": 16})
    words = as_words(config.core_arguments())
    values = config.engine_arguments()
    assert words[words.index("--logprobs-mode") + 1] == values["logprobs_mode"]
    assert values["logprobs_mode"] == "processed_logprobs"
    assert words[words.index("--max-model-len") + 1] == str(values["max_model_len"]) == "64"
    assert values["block_size"] == 16, "the user's value wins"


def test_memory_is_shared_on_a_gpu_alone():
    on_cpu = EngineConfig(model="m", context_window=64).engine_arguments()
    assert not {"gpu_memory_utilization", "enable_sleep_mode"} & set(on_cpu)
    config = EngineConfig(model="m", context_window=64, cpu=False, gpu_memory=0.3, sleep=True)
    on_gpu = config.engine_arguments()
    assert (on_gpu["gpu_memory_utilization"], on_gpu["enable_sleep_mode"]) == (0.3, True)
    assert "enforce_eager" not in on_gpu


def test_a_server_on_a_cpu_computes_where_it_schedules_unless_the_user_says_otherwise():
    config = ServerConfig(model="m", context_window=64, arguments=("--seed", "1"))
    words = command_line(config, 8000)
    at = words.index("--distributed-executor-backend")
    assert words[at + 1] == "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    assert words[-2:] == ["--seed", "1"], "the user's words are the last"
    on_gpu = command_line(dataclasses.replace(config, cpu=False), 8000)
    assert "--distributed-executor-backend" not in on_gpu

"""vLLM's start arguments, as a server's command line or as an engine's keyword arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.digests.turnwise_digests import EXTENSION

RESERVED = {
    "model": "model=...",
    "max_model_len": "context_length=...",
    "dtype": "dtype=...",
    "gpu_memory_utilization": "policy.gpu_memory=...",
    "enable_sleep_mode": "policy.sleep=...",
    "enable_lora": "lora.rank=...",
    "max_lora_rank": "lora.rank=...",
    "lora_target_modules": "lora.targets=...",
    "logprobs_mode": "",
    "generation_config": "",
}
"""Reserved arguments, with the setting to use instead. The setting is empty if users cannot choose
the value, because training depends on it."""

ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Executor that computes the model in the scheduler's process. By default, vLLM uses a separate
process on a CPU, and the scheduler busy-waits for its results. This costs one and a half cores and
delays the reading of new requests, sometimes for seconds. VLLM does not accept the short name "uni"
here."""
_PARALLEL = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
    *("--data-parallel-size", "-dp"),
)
"""Options whose values multiply the number of GPUs."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as the maximum rank of an adapter."""
MAX_RANK = _RANKS[-1]


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """How vLLM is started, as a server or as an engine."""

    model: str
    """A folder or id in the Hugging Face layout."""
    context_window: int
    """Maximum number of tokens in one sequence."""
    dtype: str = "auto"
    """Type of the weights, such as float32 or bfloat16. "auto" is the type of the saved model."""
    cpu: bool = True
    """Whether vLLM computes on the CPU, with little memory and a quick start."""
    threads: int = 1
    """Number of threads of the computation on a CPU."""
    max_num_seqs: int = 64
    """Number of requests that vLLM computes at the same time."""
    supports: bool = False
    """Whether vLLM reports the sampling support, which is not possible on a CPU."""
    experts: bool = False
    """Whether vLLM reports the experts of each token, which is not possible on a CPU."""
    transfer: str = ""
    """vLLM's own transfer for weights (nccl, ipc), or "" for files."""
    lora_rank: int = 0
    """Rank of the adapter that vLLM loads instead of weights, or 0 if vLLM loads all weights."""
    lora_targets: tuple[str, ...] = ()
    """Layers that the adapter changes, by the last part of their names."""
    gpu_memory: float = 0.0
    """Fraction of the GPU's memory for vLLM. 0 selects vLLM's own default, for a GPU that no other
    process uses."""
    sleep: bool = False
    """Whether vLLM can free its GPU's memory during updates."""
    log: Path | None = None
    """A file for vLLM's output, or None to drop the output."""

    def core_arguments(self) -> dict[str, Any]:
        """The arguments by vLLM's names.

        With these arguments, vLLM reports log-probabilities of the sampling distribution.
        """
        arguments: dict[str, Any] = {
            "model": self.model,
            "max_model_len": self.context_window,
            "dtype": self.dtype,
            "max_num_seqs": self.max_num_seqs,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "scheduling_policy": "priority",
            "worker_extension_cls": EXTENSION,
        }
        if self.transfer:
            arguments["weight_transfer_config"] = {"backend": self.transfer}
        if self.supports:
            arguments["return_sampling_mask"] = True
        if self.experts:
            arguments["enable_return_routed_experts"] = True
        if self.lora_rank:
            arguments |= {
                "enable_lora": True,
                "max_loras": 1,
                "max_lora_rank": max_lora_rank(self.lora_rank),
            }
            # By default vLLM 0.32 includes the output head. On a CPU that crashes its engine if a
            # prompt's log-probabilities are requested while other requests are sampled.
            arguments["lora_target_modules"] = list(self.lora_targets)
        if self.gpu_memory and not self.cpu:
            arguments["gpu_memory_utilization"] = self.gpu_memory
        if self.sleep and not self.cpu:
            arguments["enable_sleep_mode"] = True
        if self.cpu:
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**27, "block_size": 32}
            # Otherwise a seeded prompt computed in two chunks crashes vLLM 0.32's engine, which
            # rewinds the seed's generator: a CPU's generator cannot be rewound.
            arguments["enable_chunked_prefill"] = False
        return arguments


def max_lora_rank(rank: int) -> int:
    """The smallest ``max_lora_rank`` that fits an adapter of this rank, at most 512."""
    return next(largest for largest in _RANKS if largest >= rank)


def as_words(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as words of vLLM's command line.

    True is ``--name``, False is ``--no-name``, a dict is JSON, and each item of a list is a word.
    """
    words: list[str] = []
    for name, value in arguments.items():
        words.append(f"--{'no-' if value is False else ''}{name.replace('_', '-')}")
        if isinstance(value, dict):
            words.append(json.dumps(value))
        elif isinstance(value, list):
            words += map(str, value)
        elif not isinstance(value, bool):
            words.append(str(value))
    return words


def num_gpus(words: Sequence[str]) -> int:
    """Number of GPUs of a server with these words on its command line.

    Raises:
        ValueError: a number of parallel processes is missing or no integer.
    """
    count = 1
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _PARALLEL:
            try:
                count *= int(value if equals else words[i + 1])
            except (ValueError, IndexError) as error:
                raise ValueError(f"arguments: {name} needs an integer") from error
    return count


def split_words(text: str) -> tuple[str, ...]:
    """Words of a command line, split as a shell does.

    Raises:
        ValueError: a quotation mark is missing.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"arguments ({text!r}) lacks a closing quotation mark") from error


def parse_pairs(text: str) -> dict[str, Any]:
    """Arguments of the form ``key=value key=value``, where a value is JSON or a bare word.

    Raises:
        ValueError: a word is no pair, or the argument is reserved.
    """
    pairs: dict[str, Any] = {}
    for word in split_words(text):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not name:
            raise ValueError(f"arguments ({word!r}) must be words like max_num_seqs=32")
        if name in RESERVED:
            instead = RESERVED[name]
            reason = f"use {instead}" if instead else "training depends on its value"
            raise ValueError(f"arguments must not set {name}: {reason}")
        try:
            pairs[name] = json.loads(value)
        except json.JSONDecodeError:
            pairs[name] = value
    return pairs

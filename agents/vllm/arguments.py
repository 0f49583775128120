"""What vLLM is told at its start, as a server's command line and as an engine's arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_FREE = {
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
"""Arguments that are chosen elsewhere, by this; those without are what training rests on."""

ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Has the model computed where requests are scheduled. On a CPU vLLM puts it into a process of its
own, for whose answer the scheduler's waits spinning: that takes a core and a half of the time, and
keeps requests from being read while others are computed, at times all but one for seconds. The
name in full is taken where "uni" is not."""


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as the largest rank of an adapter."""
MAX_RANK = _RANKS[-1]


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """How vLLM is started, whichever way."""

    model: str
    """A folder or id in the Hugging Face layout."""
    context_window: int
    """Tokens of one sequence."""
    dtype: str = "auto"
    """float32, bfloat16, ...; auto is what the model was saved as."""
    cpu: bool = True
    """Whether it computes on the CPU: then it is started for little memory and a quick start."""
    threads: int = 1
    """With which it computes, on a CPU."""
    max_num_seqs: int = 64
    """Requests that it computes together."""
    supports: bool = False
    """Whether it tells which tokens top-p and top-k left; it cannot on a CPU."""
    transfer: str = ""
    """By which of its own transfers it takes weights; "": by files."""
    lora_rank: int = 0
    """Of the adapter that it is given in the place of weights; 0: it is given all weights."""
    lora_targets: tuple[str, ...] = ()
    """Layers that the adapter changes, by the last parts of their names."""
    log: Path | None = None
    """A file for what it says; None: it is not kept."""

    def core_arguments(self) -> dict[str, Any]:
        """The arguments, by vLLM's names: its log-probabilities are those it samples by."""
        told: dict[str, Any] = {
            "model": self.model,
            "max_model_len": self.context_window,
            "dtype": self.dtype,
            "max_num_seqs": self.max_num_seqs,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "scheduling_policy": "priority",
        }
        if self.transfer:
            told["weight_transfer_config"] = {"backend": self.transfer}
        if self.supports:
            told["return_sampling_mask"] = True
        if self.lora_rank:
            told |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": room(self.lora_rank)}
            # The output head among them, as vLLM 0.32 would have it, ends its engine on a CPU where
            # a prompt's log-probabilities are asked for while others are sampled.
            told["lora_target_modules"] = list(self.lora_targets)
        if self.cpu:
            told |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**27, "block_size": 32}
            # A prompt that has a seed and is computed in two pieces ends vLLM 0.32's engine: it
            # sets back the seed's generator, which those of a CPU cannot do.
            told["enable_chunked_prefill"] = False
        return told


def room(rank: int) -> int:
    """The least ``max_lora_rank`` that has room for an adapter of this rank, of 512 at most."""
    return next(largest for largest in _RANKS if largest >= rank)


def as_words(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as words of vLLM's command line; True is a word alone, False one with "no".

    What has parts is JSON; the parts of a list are words of their own.
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


def split_words(text: str) -> tuple[str, ...]:
    """Words of a command line as a shell would split them.

    Raises:
        ValueError: a quotation does not end.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"arguments ({text!r}): a quotation does not end") from error


def parse_pairs(text: str) -> dict[str, Any]:
    """Arguments given as ``key=value key=value``; values are JSON, or else words as they are.

    Raises:
        ValueError: a word is no pair, or names what is chosen elsewhere.
    """
    pairs: dict[str, Any] = {}
    for word in split_words(text):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not name:
            raise ValueError(f"arguments ({word!r}) must be words like max_num_seqs=32")
        if name in NOT_FREE:
            instead = NOT_FREE[name]
            reason = f"say {instead}" if instead else "training rests on what it is set to"
            raise ValueError(f"arguments must not set {name}: {reason}")
        try:
            pairs[name] = json.loads(value)
        except json.JSONDecodeError:
            pairs[name] = value
    return pairs

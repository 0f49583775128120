"""Which policy samples, and its settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rl.settings.choice import Build, Choice
from rl.settings.unknown import unknown


@dataclass(frozen=True, kw_only=True)
class LocalPolicyConfig:
    """A transformers model in this process, whose weights are the learner's own."""


@dataclass(frozen=True, kw_only=True)
class VLLMConfig:
    """What holds for vLLM wherever it runs."""

    weights: str = ""
    """A folder that this process and vLLM's see under one path, to hand weights over; empty:
    this machine's shared memory."""
    transfer: Literal["files", "ipc", "nccl"] = "files"
    """How weights get there: by a file that both sides read; or by vLLM's own transfer, from a GPU
    to another (nccl) or on one GPU (ipc). That needs vLLM in this interpreter as well."""
    tolerance: float = 0.0
    """By how many nats vLLM's log-probabilities may differ from the learner's after an update;
    0: four times the model's own noise, measured at the start, and at least 1e-4 for float32, 0.25
    for bfloat16."""
    start_s: float = 600.0
    """Seconds until vLLM must be there."""
    load_s: float = 120.0
    """Seconds in which it must have loaded weights."""
    stall_s: float = 60.0
    """Seconds without a token after which vLLM counts as hanging when it is asked."""

    def __post_init__(self) -> None:
        for name in ("start_s", "load_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be above 0")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance ({self.tolerance}) must be >= 0")


@dataclass(frozen=True, kw_only=True)
class VLLMServerConfig(VLLMConfig):
    """vLLM servers, which are given the learner's weights after each update."""

    url: str = ""
    """Servers that run already, with commas between; empty: the run starts its own."""
    replicas: int = 1
    """Servers that the run starts."""
    python: str = sys.executable
    """The interpreter that vLLM is installed for; it may be another environment's."""
    arguments: str = ""
    """More words for the command line of servers that the run starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 1:
            raise ValueError(f"replicas ({self.replicas}) must be >= 1")
        if self.url and self.arguments:
            raise ValueError("arguments is for servers that the run starts, not policy.url")
        # Loads what the local policy's settings need nothing of.
        from agents.vllm.arguments import split_words

        split_words(self.arguments)

    @property
    def urls(self) -> list[str]:
        """The servers that run already."""
        return [url.strip() for url in self.url.split(",") if url.strip()]


@dataclass(frozen=True, kw_only=True)
class VLLMEngineConfig(VLLMConfig):
    """The engine of vLLM in this process, on the learner's device."""

    gpu_memory: float = 0.4
    """Share of the GPU's memory that it takes; the learner has the rest."""
    sleep: bool = False
    """Whether it leaves that memory to the learner while the learner learns. Needs a GPU."""
    arguments: str = ""
    """More arguments of vLLM's AsyncEngineArgs: "max_num_batched_tokens=4096 block_size=32"."""

    def __post_init__(self) -> None:
        # As above.
        from agents.vllm.arguments import parse_pairs

        super().__post_init__()
        if not 0 < self.gpu_memory < 1:
            raise ValueError(f"gpu_memory ({self.gpu_memory}) must be above 0 and below 1")
        parse_pairs(self.arguments)


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by its name, and its settings."""

    name: str
    settings: LocalPolicyConfig | VLLMServerConfig | VLLMEngineConfig


_CONFIGS = {
    "local": LocalPolicyConfig,
    "vllm-server": VLLMServerConfig,
    "vllm-engine": VLLMEngineConfig,
}


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in _CONFIGS:
        raise unknown("policy", name, _CONFIGS)
    config: type[Any] = _CONFIGS[name]
    defaults = {f.name: f.default for f in fields(config)}
    return config, defaults, lambda values: PolicyChoice(name, config(**values))


POLICY = Choice(_resolve, default="local", names=lambda: list(_CONFIGS))

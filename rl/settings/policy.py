"""The setting ``policy``: what samples the actions, and its settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.unknown_keys import unknown


@dataclass(frozen=True, kw_only=True)
class LocalPolicyConfig:
    """A transformers model in this process, with the learner's own weights."""


@dataclass(frozen=True, kw_only=True)
class VLLMConfig:
    """Settings of vLLM, in servers and in this process."""

    weights: str = ""
    """Folder for the transfer of weights, under one path for this process and for vLLM; empty:
    this machine's shared memory."""
    transfer: Literal["files", "ipc", "nccl"] = "files"
    """How vLLM gets the weights: from files, or by vLLM's own transfer between two GPUs (nccl) or
    on one GPU (ipc). vLLM's own transfer needs vLLM in this interpreter as well."""
    tolerance: float = 0.0
    """Maximum difference in nats between vLLM's log-probabilities and the learner's after an
    update; 0: four times the model's own noise, measured at the start, and at least 1e-4 for
    float32, 0.25 for bfloat16."""
    start_s: float = 600.0
    """Maximum seconds for vLLM to start."""
    load_s: float = 120.0
    """Maximum seconds for vLLM to load weights."""
    stall_s: float = 60.0
    """Seconds without a token after which vLLM, while it has requests, counts as hanging."""

    def __post_init__(self) -> None:
        for name in ("start_s", "load_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be above 0")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance ({self.tolerance}) must be >= 0")


@dataclass(frozen=True, kw_only=True)
class VLLMServerConfig(VLLMConfig):
    """vLLM servers, which receive the learner's weights after each update."""

    url: str = ""
    """Running servers, separated by commas; empty: the run starts its own."""
    replicas: int = 1
    """Number of servers that the run starts."""
    python: str = sys.executable
    """The Python interpreter that has vLLM; it may belong to another virtual environment."""
    arguments: str = ""
    """Additional command-line arguments of servers that the run starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 1:
            raise ValueError(f"replicas ({self.replicas}) must be >= 1")
        if self.url and self.arguments:
            raise ValueError("arguments is for servers that the run starts, not policy.url")
        # Imported here, so that the local policy's settings need not load agents.vllm.
        from agents.vllm.arguments import split_words

        split_words(self.arguments)

    @property
    def urls(self) -> list[str]:
        """URLs of the running servers."""
        return [url.strip() for url in self.url.split(",") if url.strip()]


@dataclass(frozen=True, kw_only=True)
class VLLMEngineConfig(VLLMConfig):
    """vLLM's engine in this process, on the learner's device."""

    gpu_memory: float = 0.4
    """Share of the GPU's memory for vLLM; the learner has the rest."""
    sleep: bool = False
    """Free vLLM's memory while the learner learns. Needs a GPU."""
    arguments: str = ""
    """Additional arguments of vLLM's AsyncEngineArgs: "max_num_seqs=64 block_size=32"."""

    def __post_init__(self) -> None:
        # Imported here for the same reason.
        from agents.vllm.arguments import parse_pairs

        super().__post_init__()
        if not 0 < self.gpu_memory < 1:
            raise ValueError(f"gpu_memory ({self.gpu_memory}) must be above 0 and below 1")
        parse_pairs(self.arguments)


@dataclass(frozen=True)
class PolicyChoice:
    """A chosen policy: its name, and its settings."""

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

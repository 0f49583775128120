"""Which policy samples, and its settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rl.cli import Build, Choice, unknown


@dataclass(frozen=True, kw_only=True)
class LocalPolicyConfig:
    """A transformers model in this process, whose weights are the learner's own."""


@dataclass(frozen=True, kw_only=True)
class VLLMServerConfig:
    """vLLM servers, which are given the learner's weights after each update."""

    url: str = ""
    """Servers that run already, with commas between; empty: the run starts its own."""
    replicas: int = 1
    """Servers that the run starts."""
    python: str = sys.executable
    """The interpreter that vLLM is installed for; it may be another environment's."""
    arguments: str = ""
    """More words for the command line of servers that the run starts."""
    weights: str = ""
    """A folder that this process and the servers see under one path, to hand weights over; empty:
    this machine's shared memory."""
    tolerance: float = 0.0
    """By how many nats a server's log-probabilities may differ from the learner's after an update;
    0: 1e-4 for float32, 0.25 for bfloat16."""
    start_s: float = 600.0
    """Seconds until a server must be there."""
    load_s: float = 120.0
    """Seconds in which it must have loaded weights."""
    stall_s: float = 60.0
    """Seconds without a token after which a server that is asked counts as hanging."""

    def __post_init__(self) -> None:
        for name in ("start_s", "load_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"policy.{name} ({getattr(self, name)}) must be above 0")
        if self.replicas < 1:
            raise ValueError(f"policy.replicas ({self.replicas}) must be >= 1")
        if not self.tolerance >= 0:
            raise ValueError(f"policy.tolerance ({self.tolerance}) must be >= 0")
        if self.url and self.arguments:
            raise ValueError("policy.arguments is for servers that the run starts, not policy.url")

    @property
    def urls(self) -> list[str]:
        """The servers that run already."""
        return [url.strip() for url in self.url.split(",") if url.strip()]


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by its name, and its settings."""

    name: str
    settings: LocalPolicyConfig | VLLMServerConfig


_CONFIGS = {"local": LocalPolicyConfig, "vllm-server": VLLMServerConfig}


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in _CONFIGS:
        raise unknown("policy", name, _CONFIGS)
    config: type[Any] = _CONFIGS[name]
    defaults = {f.name: f.default for f in fields(config)}
    return config, defaults, lambda values: PolicyChoice(name, config(**values))


POLICY = Choice(_resolve, default="local")

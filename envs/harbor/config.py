"""Harbor's ``task.toml``: its fields, their defaults, and what this project can play.

The fields are those of schema version 1.3 (harborframework.com/docs/tasks). Unknown fields are
ignored, as Harbor ignores them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

NetworkMode = Literal["public", "no-network", "allowlist"]
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZES_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class Phase(BaseModel):
    """Network access and user of the agent or the verifier, where they differ from the default."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    user: str | int | None = None
    """User that runs commands. None for the image's."""


class Agent(Phase):
    """``[agent]``."""

    timeout_sec: float | None = Field(default=None, gt=0)


class Healthcheck(BaseModel):
    """``[environment.healthcheck]``: a command that succeeds when the environment is ready."""

    command: str
    interval_sec: float = Field(default=5.0, gt=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, gt=0)
    retries: int = Field(default=3, ge=1)


class Environment(BaseModel):
    """``[environment]`` and ``[verifier.environment]``: a container."""

    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _deprecated(cls, data: Any) -> Any:
        """Read the fields' older names."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        allowed = data.pop("allow_internet", None)
        if allowed is not None and "network_mode" not in data:
            data["network_mode"] = "public" if allowed else "no-network"
        for old in ("memory", "storage"):
            size = data.pop(old, None)
            if isinstance(size, str):
                data.setdefault(f"{old}_mb", _megabytes(size))
        return data


class Verifier(Phase):
    """``[verifier]``."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[dict[str, Any]] = []

    @property
    def separate(self) -> bool:
        """Whether the verifier has a container of its own."""
        if self.environment_mode is None:
            return self.environment is not None
        return self.environment_mode == "separate"

    @model_validator(mode="after")
    def _consistent(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode is shared, yet there is a [verifier.environment]")
        return self


class Artifact(BaseModel):
    """A path that is copied from the agent's container to a separate verifier's."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TaskConfig(BaseModel):
    """A whole ``task.toml``."""

    schema_version: str = "1.3"
    task: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Environment = Field(default_factory=Environment)
    solution: dict[str, dict[str, str]] = {}
    source: str | None = None
    steps: list[dict[str, Any]] | None = None
    multi_step_reward_strategy: str | None = None
    artifacts: list[str | Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
        return data

    def copied(self) -> list[Artifact]:
        """The paths that a separate verifier receives, besides ``/logs/artifacts``."""
        return [Artifact(source=a) if isinstance(a, str) else a for a in self.artifacts]

    def refusal(self) -> str:
        """Why this project cannot play the task, or "" if it can."""
        places = {"environment": self.environment}
        if self.verifier.environment is not None:
            places["verifier.environment"] = self.verifier.environment
        for name, place in places.items():
            if why := _environment_refusal(place):
                return f"{name}.{why}"
        if self.steps:
            return "steps: tasks of several steps cannot be played"
        for name, phase in (("agent", self.agent), ("verifier", self.verifier)):
            mode = phase.network_mode
            if mode is not None and mode != self._baseline(name).network_mode:
                return f"{name}.network_mode ({mode}) differs from its container's"
        if self.verifier.collect or any(a.service not in (None, "main") for a in self.copied()):
            return "artifacts and collect: containers beside the agent's cannot be made"
        return ""

    def _baseline(self, phase: str) -> Environment:
        if phase == "verifier" and self.verifier.separate:
            return self.verifier.environment or self.environment
        return self.environment


def read_config(path: Path) -> TaskConfig:
    """Read a ``task.toml``.

    Raises:
        ValueError: the file is missing or not TOML, or a field has a wrong value. The message names
            the file and the field.
    """
    try:
        return TaskConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{path}: {field}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def resolved(values: Mapping[str, str], allowed: frozenset[str], where: str) -> dict[str, str]:
    """Variables with ``${NAME}`` and ``${NAME:-default}`` replaced from this process's variables.

    Args:
        values: the variables of a ``task.toml``.
        allowed: names of this process's variables that tasks may read.
        where: the task, for messages.

    Raises:
        ValueError: a task asks for a variable that it may not read, or that is not set.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name in allowed and name in os.environ:
            return os.environ[name]
        if default is not None:
            return default
        why = "is not set" if name in allowed else f"is not in host_env (add host_env={name})"
        raise ValueError(f"{where} reads the variable {name}, which {why}")

    return {name: _VARIABLE.sub(value, text) for name, text in values.items()}


def _environment_refusal(place: Environment) -> str:
    if place.os.lower() != "linux":
        return f"os ({place.os}) must be linux"
    if place.gpus or place.tpu:
        return "gpus and tpu: containers have no accelerator"
    if place.network_mode == "allowlist" and place.allowed_hosts:
        return "allowed_hosts: Docker's network cannot allow single hosts"
    if place.mcp_servers:
        return "mcp_servers: servers of tools in the container cannot be called"
    return ""


def _megabytes(size: str) -> int:
    text = size.strip().upper()
    if text[-1:] not in _SIZES_MB:
        raise ValueError(f"size ({size!r}) must end in G, M or K")
    return int(float(text[:-1]) * _SIZES_MB[text[-1]])

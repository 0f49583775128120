"""The settings ``cluster=NAME``, which the command line reads without torch or Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.unknown_keys import unknown


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """All processes of the run are on this machine."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Ray places the learner's ranks and the policy's servers (needs Ray).

    The folders of the model and of the run must be on a file system that all machines share.

    Raises:
        ValueError: a value is out of range.
    """

    address: str = ""
    """Address of a running Ray cluster, HOST:PORT, or "auto" for the cluster that this machine
    belongs to. If empty, the run starts Ray on this machine, and ends it."""
    rank_cpus: float = 1.0
    """Cores that Ray reserves for each rank of the learner. A rank computes with as many threads
    where it has no GPU."""
    server_cpus: float = 1.0
    """Cores that Ray reserves for each server of the policy."""
    collector_cpus: float = 1.0
    """Cores that Ray reserves for each collector."""
    sandboxes: int = 0
    """Number of sandbox servers that Ray places for the environment's programs, which then do not
    run on the run's own machine; 0 for none. They take the place of env.sandbox."""
    sandbox_cpus: float = 1.0
    """Cores that Ray reserves for each sandbox server. It runs two programs at once for each core
    of its machine."""
    deltas: bool = False
    """Whether machines that do not see the published weights get only the elements that changed
    since the former version. Of bfloat16 weights these are few; float32 weights are sent whole."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """Whether Ray puts the processes on few machines (PACK) or on many (SPREAD)."""
    start_s: float = 300.0
    """Seconds that Ray may take to start, to find room for all processes, and to start each."""

    def __post_init__(self) -> None:
        for key in ("rank_cpus", "server_cpus", "collector_cpus", "sandbox_cpus", "start_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} ({getattr(self, key)}) must be above 0")
        if self.sandboxes < 0:
            raise ValueError(f"sandboxes ({self.sandboxes}) must be >= 0")
        if self.strategy not in ("PACK", "SPREAD"):
            raise ValueError(f"strategy ({self.strategy}) must be PACK or SPREAD")


@dataclass(frozen=True, kw_only=True)
class JoinConfig:
    """torchrun, Slurm or another launcher starts the learner's ranks, which connect to the run.

    Raises:
        ValueError: a value is out of range.
    """

    listen: str = "127.0.0.1:7717"
    """HOST:PORT at which the run waits for learner.ranks ranks; HOST is an address of this machine
    that theirs reach."""
    key_file: str = "~/.cache/turnwise/join.key"
    """File with the secret by which ranks and run know each other, at least 16 bytes. It is made if
    it does not exist; the ranks' machines need a copy."""
    rank_threads: int = 1
    """Number of threads with which a rank computes on a CPU."""
    start_s: float = 600.0
    """Seconds that the ranks may take to connect, also after a loss."""

    def __post_init__(self) -> None:
        for key in ("rank_threads", "start_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} ({getattr(self, key)}) must be above 0")
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"listen ({self.listen}) must be HOST:PORT")

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port of ``listen``."""
        host, _, port = self.listen.rpartition(":")
        return host, int(port)


Settings = LocalConfig | RayConfig | JoinConfig
_KINDS: dict[str, type[Settings]] = {"local": LocalConfig, "ray": RayConfig, "join": JoinConfig}


@dataclass(frozen=True)
class ClusterChoice:
    """A chosen cluster: its name and its settings."""

    name: str
    settings: Settings


HERE = ClusterChoice("local", LocalConfig())


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in _KINDS:
        raise unknown("cluster", name, list(_KINDS))
    kind = _KINDS[name]
    return kind, {}, lambda values: ClusterChoice(name, kind(**values))


CLUSTER = Choice(_resolve, default="local", names=lambda: list(_KINDS))

"""What the run's process and its ranks send each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rl.learner.ranks.world import World
from rl.learner.seam import Host


class Part(Protocol):
    """A learner that is one of several ranks. Its other methods are called by name."""

    @property
    def facts(self) -> Any:
        """What rank 0 reports when it is opened."""
        ...

    @property
    def version(self) -> int:
        """The version of its weights."""
        ...


OpenPart = Callable[[Host, World], Part]
"""Opens a rank's part of a learner, on the rank's thread. It is sent to the rank."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is opened with."""

    open: OpenPart
    device: str
    """The device of the rank's model."""
    dtype: str
    """The type in which the model computes."""
    rank: int
    size: int
    rendezvous: str
    """Where the ranks find each other: file://PATH or tcp://HOST:PORT."""
    timeout_s: float
    """Seconds after which an exchange with another rank fails."""
    num_threads: int
    """Number of threads that compute, on a CPU."""
    deterministic: bool
    """Whether torch must use deterministic kernels."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank sends after a call."""

    failure: BaseException | None
    value: Any
    version: int

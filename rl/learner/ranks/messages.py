"""What the run's process and its ranks send each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl.learner.seam import LearnerSpec


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is opened with."""

    learner: LearnerSpec
    rank: int
    size: int
    rendezvous: str
    """Where the ranks find each other: file://PATH or tcp://HOST:PORT."""
    device_index: int
    """The number of the rank's GPU, among those that its process sees."""
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

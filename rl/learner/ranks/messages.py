"""What the run's process and its ranks send each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.learner.seam import LearnerSpec


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is opened with."""

    learner: LearnerSpec
    rank: int
    size: int
    rendezvous: Path
    """A file through which the ranks find each other."""
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

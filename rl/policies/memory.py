"""The memory of a policy on the learner's device, which an engine states for the memory plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyMemory:
    """Bytes that a policy takes on the learner's device, without the learner's own weights."""

    generating: int = 0
    learning: int = 0
    """Bytes that the policy takes while the learner updates the weights."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts from which a policy engine computes its memory."""

    capacity: int
    """Bytes of the device."""
    on_gpu: bool
    weights: int
    """Bytes of the model's weights."""
    episode_cache: Callable[[], int]
    """Computes the bytes of the keys and values of the longest episode."""
    slots: int
    """Maximum number of episodes that are sampled at once."""
    ahead: bool
    """Whether the policy samples while the learner learns."""
    in_place: bool = True
    """Whether the learner's weights are complete and in this process, where the policy can sample
    from them."""

"""Forward passes with a key-value cache: our own, and those of transformers models."""

from agents.local.forward.batch import Batch, Forward, Ints
from agents.local.forward.batched import BatchedForward, batch_obstacle
from agents.local.forward.fallback import TransformersForward, difference
from agents.local.forward.models import (
    POSITION_DEPENDENT_ROPE,
    attention_obstacle,
    context_window,
    position_bytes,
    rope_window,
    thin_obstacle,
    trunk_of,
)
from agents.local.forward.thin import ThinForward
from agents.local.forward.trial import trial_of

__all__ = [
    "POSITION_DEPENDENT_ROPE",
    "Batch",
    "BatchedForward",
    "Forward",
    "Ints",
    "ThinForward",
    "TransformersForward",
    "attention_obstacle",
    "batch_obstacle",
    "context_window",
    "difference",
    "position_bytes",
    "rope_window",
    "thin_obstacle",
    "trial_of",
    "trunk_of",
]

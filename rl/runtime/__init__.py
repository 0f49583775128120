"""The runtime of a command: the environment's services, the model, and the policy."""

from rl.runtime.isolation import Confining
from rl.runtime.runtime import (
    DISTILL,
    EVALUATE,
    TEST,
    TRAIN,
    VALIDATION,
    Runtime,
    open_runtime,
)

__all__ = [
    "DISTILL",
    "EVALUATE",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Confining",
    "Runtime",
    "open_runtime",
]

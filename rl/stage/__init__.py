"""Where episodes are played: an environment's services, a model, and the policy that samples."""

from rl.stage.stage import (
    DISTILL,
    EVALUATE,
    TEST,
    TRAIN,
    VALIDATION,
    Confining,
    Stage,
    open_stage,
)

__all__ = [
    "DISTILL",
    "EVALUATE",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "Confining",
    "Stage",
    "open_stage",
]

"""Settings of the commands that train on preferences."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl.credit.options import Reduction
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.settings.chat import ChatConfig
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.run import ModelConfig
from rl.settings.tracking import TrackingConfig


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(TrackingConfig, ModelConfig):
    """Settings shared by the commands that train on a file of preferences."""

    data: str
    """JSON lines: {"prompt", "chosen", "rejected"} or {"prompt", "completions", "scores"}."""
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become a prompt."""
    held_out: float = 0.1
    """The share of prompts that accuracy is measured on, and that are not trained."""
    steps: int = 0
    """Optimizer steps; 0: one pass over the prompts."""
    batch_size: int = 64
    """Comparisons per step; all answers of one are in the same step."""
    micro_batch_tokens: int = 4096
    """Padded tokens per forward pass; results do not depend on it."""
    memory: MemoryConfig = field(default_factory=left_out)
    """What the learner keeps in the device's memory."""
    max_seconds: float = 0.0
    """Stop after this many seconds of training; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "steps", "max_seconds")
        at_least(1, self, "batch_size", "micro_batch_tokens")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out ({self.held_out}) must be above 0 and below 1")


@from_python
@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(PreferenceConfig):
    """Train a reward model: a language model that gives each answer a score."""

    model: str
    """The initial language model, a folder or a Hugging Face id: usually SFT's."""
    process: bool = False
    """Whether data has solutions with labelled steps, and each step gets a score:
    {"prompt", "completions", "labels"} or {"messages", "labels"}."""
    center: str = ""
    """A file of {"messages": [...]} whose answers have mean reward 0; empty: all answers."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-5, "warmup_steps": 5}}
    )
    """The learner's optimizer."""
    out: str = "runs/reward-model-{seed}"
    """The folder; the reward model is saved under checkpoints/last, where none may be yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.process and self.center:
            raise ValueError(
                f"center ({self.center}) must be empty with process=true: the scores of steps are "
                f"log-odds, which have a zero of their own"
            )


@from_python
@dataclass(frozen=True, kw_only=True)
class DPOConfig(PreferenceConfig):
    """Train a policy on preferences directly, relative to its initial weights."""

    beta: float = 0.1
    """Weight of the log-ratio: higher values keep the policy nearer to its initial weights."""
    reduction: Reduction = "sum"
    """Of an answer's log-ratio: sum or mean over tokens (DPO: sum), or turn-mean (SWEET-RL)."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-6, "warmup_steps": 5}}
    )
    """The learner's optimizer."""
    out: str = "runs/dpo-{seed}"
    """The folder; the model is saved under checkpoints/last, where none may be yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0:
            raise ValueError(f"beta ({self.beta}) must be above 0")

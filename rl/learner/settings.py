"""The learner's settings, which the command line reads without torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Literal

Checkpointing = Literal["off", "on", "offload"]
"""Modes of activation checkpointing; see :mod:`rl.learner.memory.activations`."""
HEAD_MIB = {"cpu": 128}
"""Default size of the output head's buffers in MiB, by the type of the device."""
GPU_HEAD_MIB = 1024
"""Default size of the output head's buffers in MiB on all other devices: 883 positions of 152k
words. With fewer positions, a GPU would spend its time on adding to the gradient of the head's
weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Settings of AdamW.

    Raises:
        ValueError: a value is out of range.
    """

    lr: float = 1e-6
    """Learning rate after the warm-up. A run without it has its own default, recorded as 0."""
    critic_lr: float = 0.0
    """Learning rate of the critic (the value head and, with algo.value.critic=model, its trunk),
    with the same warm-up and decay. Without it, recorded as 0, the critic has lr."""
    warmup_steps: int = 0
    """Number of optimizer steps over which the learning rate grows linearly to lr."""
    decay_steps: int = 0
    """Number of optimizer steps, including the warm-up, until the learning rate has fallen
    linearly to 0; 0 means no decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's averages of the gradient and of its square."""
    weight_decay: float = 0.0
    """Weight decay of matrices; biases and norms have none."""
    state_bits: Literal[8, 32] = 32
    """Bits of AdamW's averages. 8 (Dettmers et al. 2021, arXiv 2110.02861): 2 bytes a parameter
    instead of 8; needs bitsandbytes: pip install 'turnwise[quantized]'."""
    max_grad_norm: float = field(default=1.0, metadata={"infinite": True})
    """Maximum norm of the gradient over all parameters; larger gradients are scaled down;
    inf for no limit."""

    def __post_init__(self) -> None:
        # Within these bounds, no gradient makes a step large enough to overflow a weight.
        for key, value, fine, expected in (
            ("lr", self.lr, 0 <= self.lr <= 1, "from 0 to 1"),
            ("critic_lr", self.critic_lr, 0 <= self.critic_lr <= 1, "from 0 to 1"),
            ("warmup_steps", self.warmup_steps, self.warmup_steps >= 0, ">= 0"),
            ("decay_steps", self.decay_steps, self.decay_steps >= 0, ">= 0"),
            ("betas", self.betas, all(0 <= b < 1 for b in self.betas), "two numbers in [0, 1)"),
            ("weight_decay", self.weight_decay, 0 <= self.weight_decay <= 1, "from 0 to 1"),
            ("state_bits", self.state_bits, self.state_bits in (8, 32), "8 or 32"),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm > 0, "above 0"),
        ):
            if not fine:
                raise ValueError(f"{key} ({value}) must be {expected}")
        if self.state_bits == 8 and importlib.util.find_spec("bitsandbytes") is None:
            raise ValueError("state_bits (8) needs bitsandbytes: pip install 'turnwise[quantized]'")


@dataclass(frozen=True, kw_only=True)
class LocalLearnerConfig:
    """The learner that comes with turnwise, in this process or in several ranks.

    Raises:
        ValueError: a value is out of range.
    """

    ranks: int = 1
    """Number of processes that share the model and compute each update together, by FSDP2: one for
    each GPU, from cuda:0 on. 1 computes in the run's own process. Results do not depend on it."""
    timeout_s: float = 600.0
    """Seconds without a micro-batch or an answer after which the ranks count as lost."""
    restarts: int = 3
    """Number of times that a run whose ranks are lost starts new ones, and continues from its
    newest checkpoint."""

    def __post_init__(self) -> None:
        for key, value, fine, expected in (
            ("ranks", self.ranks, self.ranks >= 1, ">= 1"),
            ("timeout_s", self.timeout_s, self.timeout_s > 0, "above 0"),
            ("restarts", self.restarts, self.restarts >= 0, ">= 0"),
        ):
            if not fine:
                raise ValueError(f"{key} ({value}) must be {expected}")


@dataclass(frozen=True, kw_only=True)
class PluginLearnerConfig:
    """A learner from another package, which has no settings of its own."""

    ranks = 1
    restarts = 0


@dataclass(frozen=True)
class LearnerChoice:
    """A chosen learner: its name and its settings."""

    name: str
    settings: LocalLearnerConfig | PluginLearnerConfig

    @property
    def own(self) -> bool:
        """Whether the learner is turnwise's own, in the run's process or in ranks."""
        return self.name == "local"

    @property
    def in_process(self) -> bool:
        """Whether the model is in the run's own process."""
        return self.own and self.settings.ranks == 1


LOCAL = LearnerChoice("local", LocalLearnerConfig())
"""The learner in the run's own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """What the learner keeps in the device's memory; rounding aside, results do not depend on it.

    Raises:
        ValueError: a value is out of range.
    """

    activation_checkpointing: Literal["auto", "off", "on", "offload"] = "auto"
    """on: between forward and backward pass each decoder layer keeps its input only, and the
    backward pass computes the layer again. offload: the inputs wait in the host's memory. auto: on
    for a GPU, off for a CPU."""
    head_mib: int = 0
    """Buffers of the output head in MiB, whatever the vocabulary's size: the head computes logits
    in chunks of positions. 0: 1024 on a GPU, 128 on a CPU."""
    offload_scorers: bool = False
    """Whether models of rl.train that only score wait in the host's memory while they do not: a KL
    reference with weights of its own, and the reward models and local judges of shaping."""

    def __post_init__(self) -> None:
        if self.head_mib < 0:
            raise ValueError(f"head_mib ({self.head_mib}) must be >= 0")
        known = ("auto", "off", "on", "offload")
        if (mode := self.activation_checkpointing) not in known:
            raise ValueError(f"activation_checkpointing ({mode}) must be one of {', '.join(known)}")

    def checkpointing_on(self, device_type: str) -> Checkpointing:
        """The mode on a type of device, where ``auto`` is replaced by "on" or "off"."""
        if self.activation_checkpointing == "auto":
            return "off" if device_type == "cpu" else "on"
        return self.activation_checkpointing

    def head_bytes(self, device_type: str) -> int:
        """Bytes of the head's buffers on a type of device, where 0 selects the default."""
        return (self.head_mib or HEAD_MIB.get(device_type, GPU_HEAD_MIB)) * 2**20


DEFAULT_MEMORY = MemoryConfig()
"""The default memory settings of every command."""
NO_TRAINING = MemoryConfig(activation_checkpointing="off")
"""Memory settings for models that only score."""

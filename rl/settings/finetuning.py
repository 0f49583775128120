"""The settings of ``rl.sft``, ``rl.dpo`` and ``rl.reward_model``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl.cluster.settings import CLUSTER, ClusterChoice
from rl.credit.options import Reduction
from rl.learner.registration import LEARNER
from rl.learner.settings import LearnerChoice, MemoryConfig, OptimizerConfig
from rl.settings.chat import ChatConfig
from rl.settings.environment import NO_ENV
from rl.settings.groups import at_least
from rl.settings.lora import LoraConfig
from rl.settings.parsing.command_line import Implies
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.run import ModelConfig, RunConfig
from rl.settings.tracking import TrackingConfig

DEMONSTRATIONS = "demonstrations"
"""Value of ``data`` for the environment's demonstrator."""


@from_python
@dataclass(frozen=True, kw_only=True)
class SFTConfig(TrackingConfig, RunConfig, Implies):
    """Train a language model on conversations (supervised fine-tuning)."""

    data: str = "demonstrations"
    """ "demonstrations" for episodes of the environment's imperfect demonstrator, or a file of
    {"messages": [...]}. A file needs no environment, but a model; without env, nothing is
    tested."""
    demonstrations: int = 2000
    """Number of episodes that the demonstrator plays."""
    steps: int = 260
    """Number of optimizer steps."""
    batch_size: int = 32
    """Conversations per step."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-3, "warmup_steps": 10}}
    )
    """The learner's optimizer."""
    lora: LoraConfig = field(default_factory=left_out)
    """The adapter to train instead of the model's own weights."""
    learner: LearnerChoice = field(default_factory=left_out, metadata={"choice": LEARNER})
    """The learner, which computes updates. "local" computes them in this process, or in
    learner.ranks processes; plug-ins add other learners. A rank that is lost ends the command,
    whatever learner.restarts is: the model is saved at the end only."""
    micro_batch_tokens: int = 4096
    """Tokens of a forward pass of the learner, padding included; the loss does not depend on it."""
    packing: bool = True
    """Whether the learner packs rows without padding and computes prefixes that they share once;
    the loss does not depend on it. Models that cannot compute packed rows are padded."""
    memory: MemoryConfig = field(default_factory=left_out)
    """What the learner keeps in the device's memory."""
    test_tasks: int = 512
    """Number of test tasks, which are played before and after the training; 0 plays none."""
    out: str = "runs/{env}-sft-{seed}"
    """The output folder; the model is saved under checkpoints/last."""
    max_seconds: float = 0.0
    """Stop after this many seconds of training; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "test_tasks", "max_seconds")
        at_least(1, self, "steps", "batch_size", "demonstrations", "micro_batch_tokens")

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        """A file of conversations needs no environment, unless its tasks are asked for."""
        names_env = any(key.partition(".")[0] == "env" for key in given)
        if given.get("data", DEMONSTRATIONS) == DEMONSTRATIONS or names_env:
            return {}
        return {"env": NO_ENV, "test_tasks": "0", "out": "runs/sft-{seed}"}

    @property
    def plays(self) -> str:
        """The setting because of which the command needs an environment, or "" if it needs none."""
        if self.data == DEMONSTRATIONS:
            return f"data={DEMONSTRATIONS}"
        return f"test_tasks={self.test_tasks}" if self.test_tasks else ""

    @property
    def effective_learner(self) -> LearnerChoice:
        """The learner of the run's model."""
        return self.learner


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(TrackingConfig, ModelConfig):
    """Settings shared by the commands that train on a file of preferences."""

    data: str
    """A file of JSON lines {"prompt", "chosen", "rejected"} or {"prompt", "completions",
    "scores"}."""
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become a prompt."""
    held_out: float = 0.1
    """Share of prompts that are held out from training, to measure accuracy."""
    steps: int = 0
    """Number of optimizer steps; 0 for one pass over the prompts."""
    batch_size: int = 64
    """Comparisons per step. All answers of a comparison are in the same step."""
    micro_batch_tokens: int = 4096
    """Maximum number of tokens per forward pass, including padding. Results do not depend on it."""
    packing: bool = True
    """Whether rows are packed without padding, and answers to a prompt compute it once. Results do
    not depend on it. Models that cannot compute packed rows are padded."""
    memory: MemoryConfig = field(default_factory=left_out)
    """What the learner keeps in the device's memory."""
    learner: LearnerChoice = field(default_factory=left_out, metadata={"choice": LEARNER})
    """The learner: "local", in this process or in learner.ranks processes. A rank that is lost ends
    the command, whatever learner.restarts is: the model is saved at the end only."""
    cluster: ClusterChoice = field(default_factory=left_out, metadata={"choice": CLUSTER})
    """Where the learner's ranks are: "local", all on this machine; "ray", where Ray places them; or
    "join", where torchrun or Slurm starts them. cluster.KEY sets its options."""
    max_seconds: float = 0.0
    """Stop after this many seconds of training; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "steps", "max_seconds")
        at_least(1, self, "batch_size", "micro_batch_tokens")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out ({self.held_out}) must be above 0 and below 1")
        if not self.learner.own:
            raise ValueError(
                f"learner ({self.learner.name}) must be local: other learners are for rl.train and "
                f"rl.sft"
            )
        if self.cluster.name != "local" and self.learner.in_process:
            raise ValueError(
                f"cluster ({self.cluster.name}) must be local with learner.ranks=1: it is for ranks"
            )
        if sandboxes := getattr(self.cluster.settings, "sandboxes", 0):
            raise ValueError(f"cluster.sandboxes ({sandboxes}) must be 0: no program is run")


@from_python
@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(PreferenceConfig):
    """Train a reward model: a language model that gives each answer a score."""

    model: str
    """The initial language model, a folder or a Hugging Face id. Usually it is fine-tuned
    (rl.sft)."""
    process: bool = False
    """Whether to train a process reward model, which scores each step of a solution. The data are
    then {"prompt", "completions", "labels"} or {"messages", "labels"}."""
    center: str = ""
    """A file of {"messages": [...]}. The reward is shifted so that these answers have mean reward
    0. If empty, all answers of the data are used."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-5, "warmup_steps": 5}}
    )
    """The learner's optimizer."""
    out: str = "runs/reward-model-{seed}"
    """The output folder. The reward model is saved under checkpoints/last, which must not exist
    yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_state(self.optimizer, self.learner)
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
    """Weight of the log-ratio. Higher values keep the policy nearer to its initial weights."""
    reduction: Reduction = "sum"
    """How the log-ratios of an answer's tokens become one number: "sum" (DPO), "mean" over tokens,
    or "turn-mean" (SWEET-RL)."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-6, "warmup_steps": 5}}
    )
    """The learner's optimizer."""
    out: str = "runs/dpo-{seed}"
    """The output folder. The model is saved under checkpoints/last, which must not exist yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_state(self.optimizer, self.learner)
        if not self.beta > 0:
            raise ValueError(f"beta ({self.beta}) must be above 0")


def check_state(optimizer: OptimizerConfig, learner: LearnerChoice) -> None:
    """Check that ranks can divide the optimizer's state.

    Raises:
        ValueError: they cannot.
    """
    ranks = learner.settings.ranks
    if ranks > 1 and optimizer.state_bits != 32:
        raise ValueError(
            f"optimizer.state_bits ({optimizer.state_bits}) must be 32 with learner.ranks={ranks}"
        )

"""The settings of ``rl.sft``."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl.cluster.settings import CLUSTER, ClusterChoice
from rl.learner.registration import LEARNER
from rl.learner.settings import LearnerChoice, MemoryConfig, OptimizerConfig
from rl.settings.groups import at_least
from rl.settings.lora import LoraConfig
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.run import RunConfig
from rl.settings.tracking import TrackingConfig


@from_python
@dataclass(frozen=True, kw_only=True)
class SFTConfig(TrackingConfig, RunConfig):
    """Train a language model on conversations (supervised fine-tuning)."""

    data: str = "demonstrations"
    """ "demonstrations" for episodes of the environment's imperfect demonstrator, or a file of
    {"messages": [...]}."""
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
    cluster: ClusterChoice = field(default_factory=left_out, metadata={"choice": CLUSTER})
    """Where the run's processes are: "local", all on this machine; "ray", where Ray places the
    learner's ranks and the policy's servers; or "join", where torchrun or Slurm starts the ranks.
    cluster.KEY sets its options."""
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

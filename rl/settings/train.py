"""The settings of ``rl.train``, and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from agents.completion import SamplingParams
from envs.token_budget import budget_kinds
from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import algorithm_names, find_algorithm
from rl.credit.corrections import correction_kinds
from rl.credit.options import require
from rl.credit.shaping import make_shapings
from rl.learner.registration import LEARNER
from rl.learner.settings import (
    LearnerChoice,
    MemoryConfig,
    OptimizerConfig,
)
from rl.rollout.curriculum import CurriculumConfig
from rl.settings.groups import EvalConfig, PlanConfig, TextsConfig, at_least
from rl.settings.lora import LoraConfig
from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.parsing.unknown_keys import unknown
from rl.settings.recipes import RECIPES
from rl.settings.run import RunConfig
from rl.settings.tracking import TrackingConfig

TINY_LR, LARGE_LR = 4e-4, 1e-6
"""Default learning rates: for model=tiny, and for every other model."""
ADAPTER_LR = 10
"""The default learning rate of an adapter is this multiple of the model's default."""
_TINY_BYTES = 40_000_000
"""Weights of fewer bytes, 10 million numbers of float32, are a tiny model's."""
_MARGIN = 1.25
"""An error message suggests this multiple of an inner deadline as the outer deadline."""
PRESETS: dict[str, dict[str, str]] = {
    "smoke": {
        "steps": "4",
        "prompts": "8",
        "group_size": "4",
        "eval.every": "2",
        "eval.tasks": "16",
        "eval.test_tasks": "32",
        "tiny.demonstrations": "400",
        "tiny.steps": "40",
        "tiny.warmup_steps": "5",
        # After such a short warm start the model seldom ends its answers.
        "sampling.max_tokens": "96",
        "save_every": "2",
    },
}
"""Presets by name. ``preset=smoke`` runs every part once, in less than a minute."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """A chosen algorithm: its name, and its options including the user's changes."""

    name: str
    row: Algorithm


def _resolve_algorithm(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in (names := [*algorithm_names(), *RECIPES]):
        raise unknown("algorithm", name, names)
    row = RECIPES[name].row if name in RECIPES else find_algorithm(name)
    defaults = {f.name: getattr(row, f.name) for f in fields(Algorithm)}
    return Algorithm, defaults, lambda values: AlgorithmChoice(name, Algorithm(**values))


ALGORITHM = Choice(
    _resolve_algorithm,
    default="grpo",
    names=lambda: [*algorithm_names(), *RECIPES],
    implies={name: recipe.settings for name, recipe in RECIPES.items()},
)


@from_python
@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrackingConfig, RunConfig):
    """Train a language model in an environment by reinforcement learning."""

    algo: AlgorithmChoice = field(default_factory=left_out, metadata={"choice": ALGORITHM})
    """The algorithm, a row of docs/algorithms.md. algo.KEY sets its options. A recipe also sets
    other keys."""
    steps: int = 60
    """Number of updates of the weights."""
    prompts: int = 32
    """Number of tasks per step."""
    group_size: int = 8
    """Number of episodes per task."""
    staleness: int = 0
    """Maximum age of episodes, in updates of the weights. With 0, each step plays its episodes and
    then learns. Above 0, playing and learning run at the same time."""
    stale_correction: str = "tis"
    """Importance correction for tokens from older weights, used with staleness if
    algo.correction.kind is none and algo.old_logprobs is update. The values are those of
    algo.correction.kind."""
    curriculum: CurriculumConfig = field(default_factory=left_out)
    """Choice of the tasks of a step."""
    texts: TextsConfig = field(default_factory=left_out)
    """Texts that each update imitates, if algo.ptx_coef is above 0."""
    shaping: str = ""
    """Additions to rewards from lengths, siblings and reward models, as in 0.5*kimi_length. See
    docs/algorithms.md."""
    reward_weight: float = 1.0
    """Weight of the environment's own rewards. At 0, only shaping is trained on."""
    shaping_from: int = 1
    """First step at which rewards are shaped and weighted."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 0.0, "warmup_steps": 5}}
    )
    """The learner's optimizer. Without lr, the learning rate is 4e-4 for model=tiny and 1e-6 for
    other models, and ten times that for an adapter."""
    lora: LoraConfig = field(default_factory=left_out)
    """The adapter to train instead of the model's own weights."""
    learner: LearnerChoice = field(default_factory=left_out, metadata={"choice": LEARNER})
    """The learner, which computes updates. "local" computes them in this process, or in
    learner.ranks processes; plug-ins add other learners."""
    micro_batch_tokens: int = 4096
    """Tokens of a forward pass of the learner, padding included; the loss does not depend on it."""
    packing: bool = True
    """Whether the learner packs rows without padding and computes prefixes that they share once;
    the loss does not depend on it. Models that cannot compute packed rows are padded."""
    replay_routing: bool = False
    """Whether the learner of a mixture of experts computes each token with the experts that the
    sampler used. Otherwise it may choose other experts, after other rounding or other weights."""
    memory: MemoryConfig = field(default_factory=left_out)
    """What the learner keeps in the device's memory."""
    plan: PlanConfig = field(default_factory=left_out)
    """The memory plan."""
    eval: EvalConfig = field(default_factory=left_out)
    """Evaluation on held-out tasks."""
    out: str = "runs/{env}-{algo}-{seed}"
    """The run's folder."""
    resume: Literal["no", "auto"] = "no"
    """auto: continue from the newest checkpoint in out, if there is one. A run's folder: continue
    that run with its own settings, as in python -m rl.train resume=FOLDER."""
    backup: str = ""
    """Where a copy of the run's folder is kept: a folder or a URL of fsspec, such as
    s3://bucket/run. It is brought up to date after each checkpoint and at the end. With
    resume=auto, a run whose folder is gone continues from it, also on another machine."""
    save_every: int = 20
    """Number of steps between checkpoints. The last step is always saved."""
    keep_episodes: int = 0
    """Number of newest steps, and of newest validations, whose episodes stay in the folder; 0 keeps
    all."""
    record_tokens: bool = True
    """Whether the folder also gets each trained token's advantage, and its log-probability and
    entropy by the learner, for python -m rl.view."""
    max_seconds: float = 0.0
    """Stop cleanly after this many seconds of training; 0 for no limit."""
    stall_s: float = 3600.0
    """Seconds without progress (a token, an episode, a micro-batch, the arrival of an update)
    after which waiting episodes restart. After the same time again, the run ends with exit code 75.
    0 means never. Must be above env.step_timeout_s and above policy.start_s, policy.load_s and
    policy.stall_s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampling.check_training()
        at_least(0, self, "max_seconds", "keep_episodes", "stall_s")
        at_least(1, self, "steps", "prompts", "group_size", "save_every", "micro_batch_tokens")
        at_least(1, self, "shaping_from")
        at_least(0, self, "staleness")
        known, stale = correction_kinds(), self.stale_correction
        require("stale_correction", stale, stale in known, f"one of {', '.join(known)}")
        if self.stall_s:
            self._check_stall()
        if self.staleness:
            self._check_staleness()
        if self.shaping and self.algo.row.advantage.turn_rollouts:
            raise ValueError(
                f"shaping ({self.shaping}) must be empty with algo.advantage=vine: it values "
                f"states by the environment's rewards alone"
            )
        if self.reward_weight != 1 and self.algo.row.advantage.turn_rollouts:
            raise ValueError(
                f"reward_weight ({self.reward_weight}) must be 1 with algo.advantage=vine: it "
                f"values states by the environment's unweighted rewards"
            )
        at_least(0, self, "reward_weight")
        if self.reward_weight == 0:
            if not self.shaping.strip():
                raise ValueError("reward_weight (0) leaves nothing to train on: give shaping=...")
            # Both compare the environment's own rewards, before shaping.
            for key, sign in (("max_draws", ">"), ("keep", "<")):
                if getattr(self.curriculum, key) != 1:
                    must = f"must be above 0 for curriculum.{key} {sign} 1"
                    raise ValueError(f"reward_weight (0) {must}: it compares unshaped rewards")
        for key in ("max_draws", "keep"):
            if self.group_size == 1 and (given := getattr(self.curriculum, key)) != 1:
                raise ValueError(
                    f"curriculum.{key} ({given:g}) must be 1 with group_size=1: it compares the "
                    "returns of a group's members"
                )
        row = self.algo.row
        if self.group_size == 1 and row.advantage.needs_groups and not row.ptx_coef:
            raise ValueError(
                f"group_size (1) must be above 1 with algo={self.algo.name}, which compares the "
                f"members of a group: a single one teaches nothing. algo=reinforce needs no group"
            )
        kinds = budget_kinds(self.env.options.token_budget)
        for shaping in (weighted.shaping for weighted in make_shapings(self.shaping)):
            if shaping.budget and shaping.budget not in kinds:
                raise ValueError(
                    f"shaping ({self.shaping}): {shaping.name} needs prompts with a budget: "
                    f"give env.token_budget={shaping.budget}"
                )

    def _check_stall(self) -> None:
        """Check that the watchdog's deadline is above the deadlines of single waits.

        The deadline of a whole episode can be longer, because an episode's tokens count as
        progress.
        """
        alone = {"env.step_timeout_s": self.env.options.step_timeout_s}
        deadlines = self.policy.settings.deadlines()
        alone |= {f"policy.{key}": limit_s for key, limit_s in deadlines.items()}
        for key, limit_s in alone.items():
            if limit_s >= self.stall_s:
                raise ValueError(
                    f"stall_s ({self.stall_s:g}) must be above {key} ({limit_s:g}), as a healthy "
                    f"run may make no progress for that long: give "
                    f"stall_s={_MARGIN * limit_s:g}, a smaller {key}, or stall_s=0 for no watchdog"
                )

    def _check_staleness(self) -> None:
        self.policy.settings.check_staleness()
        if self.deterministic:
            raise ValueError(
                "deterministic needs staleness=0: otherwise timing orders the episodes"
            )

    @property
    def effective_learner(self) -> LearnerChoice:
        """The learner of the run's model."""
        return self.learner

    @property
    def sampling_params(self) -> SamplingParams:
        """The sampling parameters of training requests."""
        return replace(self.sampling.params(), with_experts=self.replay_routing)

    @property
    def algorithm(self) -> Algorithm:
        """The effective algorithm, with the correction for staleness."""
        row = self.algo.row
        apart = row.old_logprobs == "update" and row.mask_observations
        if self.staleness and apart and row.correction.kind == "none":
            return row.changed({"correction.kind": self.stale_correction})
        return row

    @property
    def effective_optimizer(self) -> OptimizerConfig:
        """The optimizer with its effective learning rate."""
        if self.optimizer.lr:
            return self.optimizer
        return replace(self.optimizer, lr=self._default_lr(self.model))

    @property
    def lr_notice(self) -> str:
        """A notice if a tiny model by path has the default learning rate of pretrained models.

        A checkpoint of ``model=tiny`` learns nothing at this rate.
        """
        if self.optimizer.lr or self.model == "tiny":
            return ""
        folder = Path(self.model).expanduser()
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        if not 0 < size < _TINY_BYTES or (folder / "adapter_config.json").is_file():
            return ""
        return (
            f"optimizer.lr is {self._default_lr(self.model):g}, the default for a model by path: "
            f"this model is as small as model=tiny and needs more, such as "
            f"optimizer.lr={self._default_lr('tiny'):g}"
        )

    def _default_lr(self, model: str) -> float:
        lr = TINY_LR if model == "tiny" else LARGE_LR
        return lr * (ADAPTER_LR if self.lora.rank else 1)

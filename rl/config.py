"""What a run is: plain frozen dataclasses, which the commands' ``key=value`` lines fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from agents.completion import SamplingParams
from envs.token_budget import budget_kinds
from envs.user_files import short_name
from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import algorithm_names, find_algorithm
from rl.credit.options import CorrectionKind
from rl.credit.shaping import make_shapings
from rl.errors import UsageError
from rl.learner.registration import check_learner
from rl.learner.settings import OptimizerConfig
from rl.recipes import RECIPES
from rl.rollout.curriculum import CurriculumConfig
from rl.run.plain import to_plain
from rl.settings.chat import ChatConfig
from rl.settings.choice import Build, Choice
from rl.settings.cores import usable_cores
from rl.settings.environment import ENV as ENV
from rl.settings.environment import EnvChoice as EnvChoice
from rl.settings.files import as_words
from rl.settings.given import left_out
from rl.settings.groups import EvalConfig, SamplingConfig, TextsConfig, TinyRecipe, at_least
from rl.settings.lora import LoraConfig
from rl.settings.policy import POLICY, PolicyChoice, VLLMConfig, VLLMEngineConfig
from rl.settings.presets import PRESETS as PRESETS
from rl.settings.python import from_python
from rl.settings.tracking import TrackingConfig
from rl.settings.unknown import unknown


@dataclass(frozen=True)
class AlgorithmChoice:
    """A row of the table of algorithms, and the row as changed by the user."""

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
    brings={name: recipe.settings for name, recipe in RECIPES.items()},
)
TINY_LR, LARGE_LR = 4e-4, 1e-6
"""Learning rates when none is given: for model=tiny, and for every other model."""
ADAPTER_LR = 10
"""By so much the rate of an adapter is higher."""
MAX_THREADS = 1024
"""More than the processors of any one machine; many more are refused by the system, fatally."""

_ROOM = 1.25
"""So many times a deadline is a good one for what comes after it."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every command must know: a model, and the machine."""

    model: str
    """A Hugging Face id, a model's folder, or a run's folder, which means its checkpoints/best."""
    seed: int = 0
    """Seeds tasks, sampling and initial values."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto: the GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights' type; auto is float32 on a CPU and bfloat16 on a GPU."""
    threads: int = 0
    """CPU threads that torch computes with. 0: all cores that the process may use, by its affinity,
    the cgroup's cpu.max and OMP_NUM_THREADS. With under 2 million parameters
    the local policy samples with one."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        at_least(0, self, "seed")
        at_least(0, self, "threads")
        if self.seed >= 2**63:
            raise ValueError(f"seed ({self.seed}) must be below 2**63")
        if self.threads > MAX_THREADS:
            raise ValueError(f"threads ({self.threads}) must be at most {MAX_THREADS}")

    @property
    def num_threads(self) -> int:
        """The threads in force."""
        return self.threads or usable_cores()

    @property
    def loads_model(self) -> bool:
        """Whether ``model`` is loaded here; False: it is a server's name for one."""
        return True


@dataclass(frozen=True, kw_only=True)
class RunConfig(ModelConfig):
    """What every command that plays episodes must know."""

    env: EnvChoice = field(default_factory=left_out, metadata={"choice": ENV})
    """The environment: an id, a bare name, or path/to/file.py:MyEnv; its options follow as
    env.KEY."""
    model: str = "tiny"
    """A Hugging Face id, a model's folder, or a run's folder, which means its checkpoints/best;
    "tiny" is made and warm-started here, without a download."""
    tiny: TinyRecipe = field(default_factory=left_out)
    """Size and warm start of model=tiny."""
    policy: PolicyChoice = field(default_factory=left_out, metadata={"choice": POLICY})
    """Who samples; its settings follow as policy.KEY."""
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become a prompt."""
    sampling: SamplingConfig = field(default_factory=left_out)
    """How the policy samples."""
    context_length: int = 0
    """Tokens per episode; 0 means the model's own window."""
    episode_timeout_s: float = 3600.0
    """Seconds an episode may take, time without a free slot not counted. Longer is a failure."""
    close_s: float = 120.0
    """Seconds in which each part that a command opened must have closed in the end."""
    deterministic: bool = False
    """Two runs agree bit for bit, timings aside; slower."""
    allow_unsafe: bool = False
    """Whether a sandbox without isolation may run programs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "context_length")
        at_least(1, self, "episode_timeout_s")
        at_least(0.1, self, "close_s")
        if self.deterministic and self.policy.name != "local":
            raise ValueError("deterministic needs policy=local: servers batch as requests come")
        split = self.env.options.split
        # Else the warm start would learn from tasks that the test counts.
        if split != "train":
            raise ValueError(
                f"env.split ({split!r}) must be left at 'train': a command takes each split where "
                "it belongs"
            )

    @property
    def sampling_params(self) -> SamplingParams:
        """What the policy is asked."""
        return self.sampling.params(with_support=False)


@from_python
@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrackingConfig, RunConfig):
    """Train a language model in an environment by reinforcement learning."""

    algo: AlgorithmChoice = field(default_factory=left_out, metadata={"choice": ALGORITHM})
    """The algorithm, a row of docs/algorithms.md; its choices follow as algo.KEY. A recipe sets
    other keys as well."""
    steps: int = 60
    """Learner updates."""
    prompts: int = 32
    """Tasks per step."""
    group_size: int = 8
    """Episodes per task."""
    staleness: int = 0
    """Updates by which episodes may be older than the weights that learn from them. 0: a step plays
    its episodes, then learns; above: both go on at once."""
    stale_correction: CorrectionKind = "tis"
    """With staleness, what tokens of older weights weigh, where algo.correction.kind is none and
    pi_old is of the update; docs/algorithms.md."""
    curriculum: CurriculumConfig = field(default_factory=left_out)
    """Which tasks a step plays."""
    texts: TextsConfig = field(default_factory=left_out)
    """What is imitated in each update, where algo.ptx_coef is above 0."""
    shaping: str = ""
    """What lengths, siblings and reward models add to rewards: 0.5*kimi_length; see
    docs/algorithms.md."""
    reward_weight: float = 1.0
    """What the environment's own rewards count for; at 0 shaping alone is trained on."""
    shaping_from: int = 1
    """The first step whose rewards are shaped and weighted."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 0.0, "warmup_steps": 5}}
    )
    """The learner's optimizer; lr=0 means 4e-4 for model=tiny and 1e-6 for every other model, and
    ten times that for an adapter."""
    lora: LoraConfig = field(default_factory=left_out)
    """An adapter that is trained in the place of the model's own weights."""
    learner: str = "local"
    """Where updates are computed: local is this process; other names come from plug-ins."""
    micro_batch_tokens: int = 4096
    """Padded tokens per forward of the learner; the loss does not depend on it."""
    eval: EvalConfig = field(default_factory=left_out)
    """Held-out evaluation."""
    out: str = "runs/{env}-{algo}-{seed}"
    """The run's folder."""
    resume: Literal["no", "auto"] = "no"
    """auto: go on from the newest checkpoint in out, where there is one. A run's folder: the same
    with that run's own settings; python -m rl.train resume=FOLDER needs nothing else."""
    save_every: int = 20
    """Steps between checkpoints; the last step is always saved."""
    keep_episodes: int = 0
    """Steps whose episodes stay in the folder, the newest; 0: all."""
    max_seconds: float = 0.0
    """Stop after this many seconds of training, cleanly; 0 for no limit."""
    stall_s: float = 3600.0
    """Seconds without a token, an episode, a micro-batch or an update's arrival after which waiting
    episodes are begun again, and as many later the run ends with exit code 75; 0: never. Above
    env.step_timeout_s, and above policy.start_s, load_s and stall_s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampling.check_training()
        check_learner(self.learner)
        at_least(0, self, "max_seconds", "keep_episodes", "stall_s")
        at_least(1, self, "steps", "prompts", "group_size", "save_every", "micro_batch_tokens")
        at_least(1, self, "shaping_from")
        at_least(0, self, "staleness")
        if self.stall_s:
            self._check_stall()
        if self.staleness:
            self._check_staleness()
        if self.shaping and self.algo.row.advantage.turn_rollouts:
            raise ValueError(
                f"shaping ({self.shaping}) must be empty with algo.advantage=vine: the values of "
                f"states are of the environment's rewards alone"
            )
        if self.reward_weight != 1 and self.algo.row.advantage.turn_rollouts:
            raise ValueError(
                f"reward_weight ({self.reward_weight}) must be 1 with algo.advantage=vine: the "
                f"values of states are of the environment's rewards as they are"
            )
        at_least(0, self, "reward_weight")
        if self.reward_weight == 0:
            if not self.shaping.strip():
                raise ValueError("reward_weight (0) leaves nothing to train on: give shaping=...")
            # Both look at what the environment pays, before shaping.
            for key, sign in (("max_draws", ">"), ("keep", "<")):
                if getattr(self.curriculum, key) != 1:
                    must = f"must be above 0 for curriculum.{key} {sign} 1"
                    raise ValueError(f"reward_weight (0) {must}: it compares unshaped rewards")
        kinds = budget_kinds(self.env.options.token_budget)
        for shaping in (weighted.shaping for weighted in make_shapings(self.shaping)):
            if shaping.budget and shaping.budget not in kinds:
                raise ValueError(
                    f"shaping ({self.shaping}): {shaping.name} needs prompts with a budget: "
                    f"give env.token_budget={shaping.budget}"
                )

    def _check_stall(self) -> None:
        """The deadline that is nearest to a cause comes first: the watchdog is the last of all.

        Episodes as a whole may take longer: they show tokens as they go on.
        """
        alone = {"env.step_timeout_s": self.env.options.step_timeout_s}
        settings = self.policy.settings
        if isinstance(settings, VLLMConfig):
            alone |= {
                "policy.start_s": settings.start_s,
                "policy.load_s": settings.load_s,
                "policy.stall_s": settings.stall_s,
            }
        for key, limit_s in alone.items():
            if limit_s >= self.stall_s:
                raise ValueError(
                    f"stall_s ({self.stall_s:g}) must be above {key} ({limit_s:g}): for so long "
                    f"nothing may get further; give stall_s={_ROOM * limit_s:g}, a smaller {key}, "
                    f"or stall_s=0 for no watchdog"
                )

    def _check_staleness(self) -> None:
        settings = self.policy.settings
        if isinstance(settings, VLLMEngineConfig) and settings.sleep:
            raise ValueError(
                "policy.sleep must be False with staleness above 0: then it samples while the "
                "learner learns"
            )
        if self.deterministic:
            raise ValueError("deterministic needs staleness=0: else time says what is learned when")

    @property
    def sampling_params(self) -> SamplingParams:
        """What the policy is asked in training."""
        return self.sampling.params()

    @property
    def algorithm(self) -> Algorithm:
        """The row in force, with what corrects for staleness."""
        row = self.algo.row
        apart = row.old_logprobs == "update" and row.mask_observations
        if self.staleness and apart and row.correction.kind == "none":
            return row.changed({"correction.kind": self.stale_correction})
        return row

    @property
    def optimizer_in_force(self) -> OptimizerConfig:
        """The optimizer with its learning rate."""
        if self.optimizer.lr:
            return self.optimizer
        lr = TINY_LR if self.model == "tiny" else LARGE_LR
        return replace(self.optimizer, lr=lr * (ADAPTER_LR if self.lora.rank else 1))


@from_python
@dataclass(frozen=True, kw_only=True)
class SFTConfig(TrackingConfig, RunConfig):
    """Train a language model to say what the authors of conversations said."""

    data: str = "demonstrations"
    """"demonstrations": the environment's imperfect author; or a file of {"messages": [...]}."""
    demonstrations: int = 2000
    """How many episodes its author plays."""
    steps: int = 260
    """Optimizer steps."""
    batch_size: int = 32
    """Conversations per step."""
    optimizer: OptimizerConfig = field(
        default_factory=left_out, metadata={"defaults": {"lr": 1e-3, "warmup_steps": 10}}
    )
    """The learner's optimizer."""
    lora: LoraConfig = field(default_factory=left_out)
    """An adapter that is trained in the place of the model's own weights."""
    test_tasks: int = 512
    """Test tasks played before and after; 0: none."""
    out: str = "runs/{env}-sft-{seed}"
    """The folder; the model is saved under checkpoints/last."""
    max_seconds: float = 0.0
    """Stop after this many seconds of training; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "test_tasks", "max_seconds")
        at_least(1, self, "steps", "batch_size", "demonstrations")


@from_python
@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TrackingConfig, RunConfig):
    """Measure how often a model succeeds in an environment."""

    split: Literal["test", "held-out", "validation", "train", "all"] = "test"
    """Which tasks. "test": test tasks; where rows name no split, every row. "held-out": those
    of such rows that training leaves for its test. "all": every row."""
    tasks: int = 0
    """How many of them, the first; 0: every row of a data set, 512 of generated tasks."""
    episodes: int = 1
    """Episodes per task."""
    json: bool = False
    """Print all numbers as a line of JSON, and no table; the word --json will do."""
    out: str = ""
    """A folder for the episodes and the result; empty: nothing is written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "tasks")
        at_least(1, self, "episodes")
        if self.log.names and not self.out:
            raise ValueError(f"log ({self.log.name}) needs a folder: give out=FOLDER")


def run_path(out: str, config: ModelConfig, algo: str = "") -> Path:
    """``out`` with {env}, {algo} and {seed} filled in; {seed} alone where no episodes are played.

    Raises:
        UsageError: it is empty, or another name stands in braces.
    """
    if not out:
        raise UsageError("out is empty: name a folder")
    names: dict[str, str | int] = {"seed": config.seed}
    if isinstance(config, RunConfig):
        names |= {"env": short_name(config.env.env_id), "algo": algo}
    try:
        return Path(out.format(**names)).expanduser()
    except (KeyError, IndexError, ValueError) as error:
        known = "{env}, {algo} and {seed}" if "env" in names else "{seed}"
        raise UsageError(f"out ({out}) may hold {known}") from error


def as_lines(config: object) -> str:
    """The resolved configuration as the command line would write it, a key per line."""
    return "".join(f"{word}\n" for word in as_words(to_plain(config)))

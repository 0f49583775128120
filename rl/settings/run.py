"""Settings that commands share: the model, the machine, and the playing of episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agents.completion import SamplingParams
from agents.context.settings import ContextConfig
from envs.user_files import is_importable, short_name
from rl.cluster.settings import CLUSTER, ClusterChoice
from rl.errors import UsageError
from rl.learner.settings import LOCAL, LearnerChoice
from rl.policies.engine import PolicyChoice
from rl.policies.partner import PartnerChoice
from rl.run.process.cores import usable_cores
from rl.settings.chat import ChatConfig
from rl.settings.environment import ENV, NO_ENV, EnvChoice
from rl.settings.groups import SamplingConfig, TinyRecipe, at_least
from rl.settings.parsing.files import as_words
from rl.settings.parsing.left_out import left_out
from rl.settings.parsing.plain import to_plain
from rl.settings.policy import PARTNER, POLICY

MAX_THREADS = 1024
"""Maximum number of threads, more than any machine has processors. With many more, the system ends
the process."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of every command that uses a model: the model, and the machine."""

    model: str
    """A Hugging Face id, a model's folder, or a run's folder, which stands for its
    checkpoints/best."""
    seed: int = 0
    """Seed of tasks, sampling and initial values."""
    device: str = "auto"
    """ "cpu", "cuda", "cuda:1", or "auto" for the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights. "auto" is float32 on a CPU and bfloat16 on a GPU."""
    threads: int = 0
    """Number of CPU threads of torch. 0 means all cores that the process may use by its affinity,
    the cgroup's cpu.max and OMP_NUM_THREADS. The local policy samples from models of under 2
    million parameters with one thread."""
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
        """The number of threads that torch uses."""
        return self.threads or usable_cores()

    @property
    def loads_model(self) -> bool:
        """Whether this process loads ``model``. False if ``model`` is a name on a server."""
        return True


@dataclass(frozen=True, kw_only=True)
class RunConfig(ModelConfig):
    """Settings of every command that plays episodes."""

    env: EnvChoice = field(default_factory=left_out, metadata={"choice": ENV})
    """The environment: an id, a bare name, or path/to/file.py:MyEnv. env.KEY sets its options."""
    model: str = "tiny"
    """A Hugging Face id, a model's folder, or a run's folder, which stands for its
    checkpoints/best. "tiny" is created and warm-started on this machine, without a download."""
    tiny: TinyRecipe = field(default_factory=left_out)
    """Size and warm start of model=tiny."""
    policy: PolicyChoice = field(default_factory=left_out, metadata={"choice": POLICY})
    """The policy, which samples the actions. policy.KEY sets its options."""
    partner: PartnerChoice = field(default_factory=left_out, metadata={"choice": PARTNER})
    """Who plays the roles of partner.role, which are then not trained: a frozen model (local), an
    endpoint (openai) or a function (script). partner.KEY sets its options."""
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become a prompt."""
    sampling: SamplingConfig = field(default_factory=left_out)
    """Sampling by the policy."""
    cluster: ClusterChoice = field(default_factory=left_out, metadata={"choice": CLUSTER})
    """Where the run's processes are: "local", all on this machine; "ray", where Ray places the
    learner's ranks and the policy's servers; or "join", where torchrun or Slurm starts the ranks.
    cluster.KEY sets its options."""
    collectors: int = 1
    """Number of processes that play episodes, for runs whose episodes fill one process. 1 plays
    them in the command's own process. More need a policy of servers, such as vllm-server."""
    context_length: int = 0
    """Maximum number of tokens in an episode (with context.compact, in one of its contexts); 0 for
    the model's own window."""
    context: ContextConfig = field(default_factory=left_out)
    """Compaction of conversations that fill their context."""
    episode_timeout_s: float = 3600.0
    """Seconds that an episode may take, not counting its wait for a free slot. A longer episode
    fails."""
    close_s: float = 120.0
    """Seconds that each opened component may take to close at the end of the command."""
    deterministic: bool = False
    """Make two runs agree bit for bit, except for timings; slower. On a GPU, an operation without a
    deterministic kernel ends the run."""
    allow_unsafe: bool = False
    """Allow programs to run in a sandbox without isolation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "context_length")
        at_least(1, self, "collectors")
        at_least(1, self, "episode_timeout_s")
        at_least(0.1, self, "close_s")
        if self.deterministic and not self.policy.settings.supports_deterministic:
            raise ValueError(
                "deterministic needs policy=local: servers batch requests as they arrive"
            )
        if self.collectors > 1 and not self.policy.settings.admits_guests:
            raise ValueError(
                f"collectors ({self.collectors}) must be 1 with policy={self.policy.name}: "
                "collectors sample from servers, as with policy=vllm-server"
            )
        if self.collectors > 1 and self.partner.name == "local":
            raise ValueError(
                f"collectors ({self.collectors}) must be 1 with partner=local: each collector "
                "would load the partner's model; partner=openai is a server's model"
            )
        self.partner.settings.check()
        if self.deterministic and not self.partner.settings.supports_deterministic:
            raise ValueError(
                f"deterministic needs partner=none or script: partner={self.partner.name} answers "
                "requests as they arrive"
            )
        if self.env.env_id == NO_ENV:
            self._check_without_env()
        split = self.env.options.split
        compacts = self.context.compact != "none"
        if compacts and (self.env.env_id == "agent-v0" or not self.loads_model):
            raise ValueError(
                f"context.compact ({self.context.compact}) must be none with env=agent and with a "
                f"model behind a chat API: the agent or the server holds the conversation"
            )
        # With another split the warm start would learn from tasks of the test.
        if split != "train":
            raise ValueError(
                f"env.split ({split!r}) must be left at 'train': a command takes each split where "
                "it belongs"
            )

    @property
    def plays(self) -> str:
        """The setting because of which the command needs an environment, or "" if it needs none."""
        return "this command"

    def _check_without_env(self) -> None:
        """Reject settings that need an environment."""
        for key in (self.plays, "partner" if self.partner.name != "none" else ""):
            if key:
                raise ValueError(f"env is empty, and {key} needs an environment: give env=NAME")
        if self.model == "tiny":
            raise ValueError(
                "env is empty, and model=tiny is warm-started in an environment: give "
                "model=FOLDER or a Hugging Face id, or env=NAME"
            )

    @property
    def effective_learner(self) -> LearnerChoice:
        """The learner of the run's model: without training, that of this process."""
        return LOCAL

    @property
    def sampling_params(self) -> SamplingParams:
        """The sampling parameters of the command's requests."""
        return self.sampling.params(with_support=False)


def run_path(out: str, config: ModelConfig, algo: str = "") -> Path:
    """``out`` with {env}, {algo} and {seed} filled in. Commands without episodes have only {seed}.

    Raises:
        UsageError: ``out`` is empty, or has another name in braces.
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


def resume_call(env_id: str, folder: Path) -> str:
    """The Python call that continues a run. A class of a notebook must be passed again."""
    again = "" if is_importable(env_id) else f"env={short_name(env_id)}, "
    return f"rl.fit(rl.TrainConfig({again}resume={str(folder)!r}))"


def resume_words(env_id: str, folder: Path) -> str:
    """The command that continues a run, or the Python call if a command cannot find the class."""
    if is_importable(env_id):
        return f"python -m rl.train resume={folder}"
    return f"{resume_call(env_id, folder)} where {short_name(env_id)} is defined"


def as_lines(config: object) -> str:
    """The resolved configuration as words of a command line, one per line."""
    return "".join(f"{word}\n" for word in as_words(to_plain(config)))

"""The contract of a policy engine, which samples the completions of a run.

A policy engine is a frozen dataclass that derives from :class:`PolicyEngine`. Its fields are the
settings ``policy.KEY``, and :meth:`PolicyEngine.open` starts its policy. An engine whose servers
load copies of the weights derives from :class:`~rl.policies.serving.ServerEngine` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from rl.cluster.cluster import THIS_MACHINE, Cluster
from rl.policies.memory import DeviceFacts, PolicyMemory

if TYPE_CHECKING:
    import torch

    from agents.completion import SamplingParams
    from agents.policy import Policy
    from agents.torch_thread import TorchThread
    from rl.cluster.settings import ClusterChoice
    from rl.learner.seam import Learner, LearnerSpec
    from rl.learner.settings import LearnerChoice
    from rl.settings.groups import SamplingConfig
    from rl.settings.lora import LoraConfig


@dataclass(frozen=True)
class PolicyChoice:
    """A chosen policy: its name, and its settings."""

    name: str
    settings: PolicyEngine


class RunSettings(Protocol):
    """The settings of a run that a policy engine reads; see :class:`rl.settings.run.RunConfig`."""

    @property
    def seed(self) -> int:
        """Seed of tasks, sampling and initial values."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether two runs with equal settings must agree bit for bit."""
        ...

    @property
    def num_threads(self) -> int:
        """CPU threads of torch."""
        ...

    @property
    def context_length(self) -> int:
        """Maximum number of tokens in an episode; 0 for the model's own window."""
        ...

    @property
    def episode_timeout_s(self) -> float:
        """Maximum seconds of an episode."""
        ...

    @property
    def cluster(self) -> ClusterChoice:
        """Where the run's processes are."""
        ...

    @property
    def effective_learner(self) -> LearnerChoice:
        """The learner of the run's model."""
        ...

    @property
    def sampling(self) -> SamplingConfig:
        """Settings of the policy's sampling."""
        ...

    @property
    def sampling_params(self) -> SamplingParams:
        """The sampling parameters of the run's requests."""
        ...

    @property
    def policy(self) -> PolicyChoice:
        """The chosen policy."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a run offers to a policy engine."""

    config: RunSettings
    """Settings of the run."""
    learner: Learner
    """The source of the weights, and of the scores that verify them."""
    spec: LearnerSpec
    """The specification of the learner: the model's folder, the tokenizer, device and type."""
    thread: TorchThread | None
    """The thread on which learner and policy compute in turns. If None, both compute at the same
    time, so a policy in this process needs its own weights and thread."""
    logs: Path | None
    """Folder for the logs of servers. If None, the logs are dropped."""
    report: Callable[[str], None]
    """Function that shows a line to the user."""
    stack: AsyncExitStack
    """The stack that closes the policy at the end of the run."""
    cluster: Cluster = THIS_MACHINE
    """Where the policy's servers run."""

    @property
    def context_window(self) -> int:
        """Maximum number of tokens in an episode."""
        return self.config.context_length or self.learner.facts.context_window


@dataclass(frozen=True, kw_only=True)
class PolicyEngine(ABC):
    """Base class of policy engines. Its fields are the settings ``policy.KEY``, with defaults."""

    samples_tokens: ClassVar[bool] = True
    """Whether the policy returns token ids. Without them, a model can only be evaluated."""
    supports_deterministic: ClassVar[bool] = False
    """Whether equal runs sample equal tokens, so that ``deterministic=true`` is allowed."""
    admits_guests: ClassVar[bool] = False
    """Whether other processes can sample from the policy's servers, so that ``collectors`` can be
    above 1; see :mod:`agents.serving.sampling.guests`."""
    loads_adapters: ClassVar[bool] = False
    """Whether the policy's ``load_weights`` receives the adapter alone if only an adapter is
    trained. Otherwise it receives the whole model's weights."""

    def deadlines(self) -> Mapping[str, float]:
        """Seconds for which a healthy policy can make no progress, by the setting that limits them.

        The run's ``stall_s`` must be above each of them.
        """
        return {}

    def gpus_of_servers(self, device_type: str) -> Sequence[int]:
        """The number of GPUs of each server that the policy starts on a cluster.

        The default is none: the policy starts no server that a cluster can place.

        Args:
            device_type: the type of the learner's device, "cuda" or "cpu".
        """
        return ()

    def check_staleness(self) -> None:
        """Check that the policy can sample while the learner learns, for ``staleness`` above 0.

        Raises:
            ValueError: the policy cannot sample while the learner learns.
        """
        return

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject settings that are impossible on this machine, before the model is loaded.

        Raises:
            UsageError: the policy cannot run on this machine or with these settings.
        """
        return

    @property
    def sleeps(self) -> bool:
        """Whether the policy sleeps while the learner learns.

        The learner's state then waits in the host's memory while the policy starts and generates.
        """
        return False

    def device_memory(self, device: DeviceFacts) -> PolicyMemory:
        """The memory that the policy takes on the learner's device, for the memory plan.

        The default is none: the policy computes elsewhere.
        """
        return PolicyMemory()

    @abstractmethod
    async def open(self, context: PolicyContext) -> Policy:
        """Start the policy, and load the learner's weights.

        Push ``policy.close`` to ``context.stack`` before the policy starts anything, so that a
        failed start is also cleaned up.

        Raises:
            PolicyFailure: the policy cannot be started, or cannot load the weights.
        """

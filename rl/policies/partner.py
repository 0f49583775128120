"""The contract of a partner, which plays roles of an episode that are not trained.

A partner engine is a frozen dataclass that derives from :class:`PartnerEngine`. Its fields are the
settings ``partner.KEY``, and :meth:`PartnerEngine.open` starts the partner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agents.completion import SamplingParams
from rl.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agents.policy import Observable
    from agents.torch_thread import TorchThread
    from rl.rollout.context import Partner


@dataclass(frozen=True)
class PartnerChoice:
    """A chosen partner: its name, and its settings."""

    name: str
    settings: PartnerEngine


@dataclass(frozen=True, slots=True)
class PartnerContext:
    """What a command offers to a partner."""

    model: str
    """The folder or hub id of the command's own model as it is at the start, or "" if the command
    loads none."""
    device: str
    """Device of a model in this process."""
    dtype: str
    """Type of its weights, as in "float32"."""
    num_threads: int
    """Number of CPU threads for a model in this process."""
    seed: int
    """Seed of requests that have no seed themselves."""
    slots: int
    """Maximum number of sequences that a model in this process decodes at the same time."""
    timeout_s: float
    """Maximum seconds of an episode, and hence of a request."""
    thread: TorchThread | None
    """The thread on which learner, policy and partner compute in turns. If None, a partner in this
    process needs its own thread."""
    load_tokenizer: Callable[[str], PreTrainedTokenizerBase]
    """Loads the tokenizer of a model's folder."""
    watch: Callable[[Observable], None]
    """Receives a policy whose progress counts as the command's progress."""
    stack: AsyncExitStack
    """The stack that closes the partner at the end of the command."""


@dataclass(frozen=True, kw_only=True)
class PartnerEngine(ABC):
    """Base class of partners. Its fields are the settings ``partner.KEY``, with defaults."""

    supports_deterministic: ClassVar[bool] = False
    """Whether equal requests get equal answers, so that ``deterministic=true`` is allowed."""

    role: str = ""
    """The role that the partner plays, or several roles, separated by commas."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the partner plays."""
        return tuple(dict.fromkeys(filter(None, (name.strip() for name in self.role.split(",")))))

    def check(self) -> None:
        """Check the settings that a default cannot supply.

        Raises:
            ValueError: a setting is missing.
        """
        if not self.roles:
            raise ValueError("partner.role is empty: name the role that the partner plays")

    def find(self) -> PartnerEngine:
        """These settings with the names of models resolved. Called before anything is opened.

        Raises:
            UsageError: there is no such model or function.
        """
        return self

    @abstractmethod
    async def open(self, context: PartnerContext) -> Partner:
        """Start the partner. ``context.stack`` closes it.

        Raises:
            UsageError: a setting is wrong on this machine.
            ValueError: there is no model, or it cannot be sampled from.
        """


@dataclass(frozen=True, kw_only=True)
class SamplingPartner(PartnerEngine):
    """Base class of partners that sample from a model."""

    temperature: float = 1.0
    """Divisor of the logits; 0 is greedy."""
    top_p: float = 1.0
    """Probability mass to sample from, likeliest tokens first."""
    max_tokens: int = 512
    """Maximum number of tokens in a turn of the partner."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature ({self.temperature}) must be at least 0")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens ({self.max_tokens}) must be at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p ({self.top_p}) must be above 0 and at most 1")

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of the partner's requests."""
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens
        )


@dataclass(frozen=True, kw_only=True)
class NoPartner(PartnerEngine):
    """No partner: the trained policy plays every role."""

    supports_deterministic = True

    def check(self) -> None:
        """Reject a role that has no player.

        Raises:
            ValueError: a role is given.
        """
        if self.roles:
            raise ValueError(
                f"partner.role ({self.role}) needs a partner: give partner=local, openai or script"
            )

    async def open(self, context: PartnerContext) -> Partner:
        """Always raises.

        Raises:
            UsageError: always.
        """
        raise UsageError("partner=none plays no role")


def check_roles(engine: PartnerEngine, env_id: str, roles: Sequence[str]) -> None:
    """Check that an environment declares the roles of a partner, and another role to train.

    Args:
        engine: the partner's settings.
        env_id: the environment's id, for messages.
        roles: ``TextEnv.roles`` of the environment.

    Raises:
        UsageError: a role is not declared, or no role is left.
    """
    for role in engine.roles:
        if role not in roles:
            known = f"its roles are {', '.join(roles)}" if roles else "it declares no roles"
            raise UsageError(
                f"partner.role ({role}) is no role of {env_id} with these options: {known} (for "
                "support-v0, give env.customer=role)"
            )
    if engine.roles and not set(roles) - set(engine.roles):
        raise UsageError(
            f"partner.role ({engine.role}) leaves no role of {env_id} to the policy: its roles are "
            f"{', '.join(roles)}"
        )

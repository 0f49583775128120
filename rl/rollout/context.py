"""The environment, policy, limits and reports that all episodes of a collection share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import envs
from agents.agent import Agent, TokenAgent
from agents.completion import SamplingParams
from agents.context.agent import CompactingAgent
from agents.context.settings import ContextConfig
from agents.policy import Policy, PolicyFailure
from agents.renderer import Renderer
from envs.env import EnvOptions, TextEnv
from rl.run.process.activity import Activities

if TYPE_CHECKING:
    from rl.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)
_SLOW_BUILD_S = 0.05
"""Seconds of a processor for one environment above which a warning is logged."""
_NUM_TIMED = 4
"""Number of environments whose building is timed."""


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """Limits of tokens, time, retries and failures."""

    context_length: int
    """The model's context window, in tokens."""
    episode_tokens: int = 0
    """Maximum number of sampled tokens in an episode, over all turns. If 0, only the context
    window limits them."""
    episode_timeout_s: float = 3600.0
    """Wall-clock seconds of an attempt, not counting the time that its requests wait in the
    policy's queue. An attempt that takes longer fails and is retried."""
    retries: int = 2
    """Number of restarts of an episode after retryable failures."""
    max_failed: float = 0.25
    """Maximum share of failed episodes in a collection."""
    requests_at_once: int = 0
    """Maximum number of concurrent requests of one episode, for agents that send several. 0 sets
    no limit."""


@runtime_checkable
class Queueing(Protocol):
    """A service with a queue of callers."""

    async def ready(self) -> None:
        """Wait until the queue is short."""
        ...


class Partner(Protocol):
    """Plays roles of an episode that are not trained; see :mod:`rl.policies.partner`."""

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent for one role of an episode. Its segment is never trained."""
        ...

    def queued_s(self, session: str) -> float:
        """Seconds that the episode's requests waited in the partner's queue, so far."""
        ...

    def end(self, session: str) -> None:
        """Release everything that is kept for a finished episode."""
        ...


class PartnerFailure(PolicyFailure):
    """Raised when the partner of a role fails. It is a failure of the infrastructure."""


@dataclass(kw_only=True)
class EpisodeContext:
    """Everything that the episodes of a collection share."""

    env_id: str
    """The environment's full id."""
    options: EnvOptions
    """The environment's options."""
    services: Mapping[str, Any]
    """The services of ``TextEnv.open_services``; the caller opens and closes them."""
    policy: Policy
    """The policy, which samples the completions."""
    renderer: Renderer
    """The renderer, which turns messages into tokens."""
    sampling: SamplingParams
    """Parameters with which completions are sampled."""
    limits: EpisodeLimits
    partners: Mapping[str, Partner] = field(default_factory=dict)
    """The partners by the roles that they play. The policy plays all other roles."""
    compaction: ContextConfig = field(default_factory=ContextConfig)
    """What agents keep when a conversation fills its context."""
    activities: Activities = field(default_factory=Activities)
    """Receives from each episode what the episode waits for."""
    on_episode: Callable[[], None] = lambda: None
    """Called at the end of each episode."""
    on_played: Callable[[int, int, Trajectory], None] = lambda task, member, trajectory: None
    """Called with each episode's task, member and record at its end, before :meth:`on_episode`."""
    seen_errors: set[str] = field(default_factory=set, init=False, repr=False)
    """The errors of the environment's code whose tracebacks were logged."""
    _build_s: list[float] = field(default_factory=list, init=False, repr=False)
    """Seconds of a processor in which each of the first environments was built."""

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent for one role of an episode.

        Args:
            session: the episode's name.
            turn_seed: returns the sampling seed of a turn.
        """
        if self.compaction.compact != "none":
            return CompactingAgent(
                self.renderer,
                self.policy,
                self.sampling,
                self.compaction,
                session=session,
                context_length=self.limits.context_length,
                turn_seed=turn_seed,
            )
        return TokenAgent(
            self.renderer,
            self.policy,
            self.sampling,
            session=session,
            context_length=self.limits.context_length,
            turn_seed=turn_seed,
        )

    def queued_s(self, session: str) -> float:
        """Seconds that an episode waited in the queues of the policy and of the partners."""
        everyone = {id(partner): partner for partner in self.partners.values()}.values()
        partners = sum(partner.queued_s(session) for partner in everyone)
        return self.policy.queued_s(session) + partners

    def end(self, session: str) -> None:
        """Forget an attempt in the policy and the partners."""
        self.policy.end(session)
        for partner in self.partners.values():
            partner.end(session)

    def played(self, task: int, member: int, trajectory: Trajectory) -> None:
        """Report the end of an episode."""
        self.activities.progressed("an episode")
        self.on_played(task, member, trajectory)
        self.on_episode()

    def make_env(self) -> TextEnv[Any, Any]:
        """A new environment that shares the services.

        Each attempt of an episode gets its own, so that no episode can change another. Logs a
        warning if environments take long to build.
        """
        began = time.thread_time()
        env = envs.make_from(self.env_id, self.options, self.services)
        if len(self._build_s) < _NUM_TIMED:
            self._build_s.append(time.thread_time() - began)
            if len(self._build_s) == _NUM_TIMED:
                self._warn_of_slow_builds()
        return env

    def _warn_of_slow_builds(self) -> None:
        # The first environment may fill a cache.
        seconds = min(self._build_s[1:])
        if seconds > _SLOW_BUILD_S:
            logger.warning(
                "%s takes %.2f s to build, for each episode, and all others stand still meanwhile: "
                "in __init__, get what takes long from a function with functools.cache, or from "
                "open_services",
                *(self.env_id, seconds),
            )

    async def services_ready(self) -> None:
        """Wait until the queue of each service is short, before a turn sends more requests."""
        for service in self._queueing:
            await service.ready()

    @cached_property
    def _queueing(self) -> list[Queueing]:
        return [s for s in self.services.values() if isinstance(s, Queueing)]

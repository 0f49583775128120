"""The agent of an episode: it reads text and returns actions."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from agents.completion import Completion, SamplingParams
from agents.policy import Policy
from agents.renderer import Renderer
from agents.segment import Segment
from envs.episode import Action


class ContextFull(Exception):
    """Raised when the conversation leaves no room for another token in the context window."""


class Agent(Protocol):
    """An agent for one episode: it reads observations and returns actions."""

    segment: Segment
    """The recorded tokens of the current context."""
    earlier: list[Segment]
    """The segments of earlier contexts, in order."""
    session: str
    """The episode's name."""
    turn_seed: Callable[[int], int] | None
    """Returns the sampling seed of a turn."""
    num_turns: int
    """Number of turns of the episode so far."""
    last: Completion | None
    """The last completion."""
    num_sampled: int
    """Number of tokens that the last turn's record trains, including those of a summary."""
    unrecorded_tokens: int
    """Number of tokens of the last action that ``segment`` does not record."""

    def fork(self) -> Self:
        """A copy of this agent."""
        ...

    def start(
        self,
        observation: str,
        system: str | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read the episode's first observation and its rules."""
        ...

    def observe(self, observation: str, *, continues: bool) -> None:
        """Read the observation after an action."""
        ...

    async def act(self) -> Action:
        """The next action."""
        ...


class TokenAgent:
    """An agent for one episode. It records every token for training.

    ``start`` and ``observe`` append the tokens of observations, and ``act`` appends the tokens that
    the policy samples. ``segment`` holds all of them.

    Args:
        renderer: turns text into tokens.
        policy: samples completions.
        sampling: sampling parameters. The episode adds its stop strings and stop tokens.
        session: the episode's name, for the policy's cache.
        context_length: the model's context window in tokens.
        turn_seed: returns the sampling seed of a turn. If None, the policy chooses seeds.

    Attributes:
        num_turns: number of turns of the episode so far. In an episode with several agents, the
            number counts the turns of all agents, and the caller sets it before each call of
            ``start`` or ``observe``.
    """

    def __init__(
        self,
        renderer: Renderer,
        policy: Policy,
        sampling: SamplingParams,
        *,
        session: str,
        context_length: int,
        turn_seed: Callable[[int], int] | None = None,
    ) -> None:
        self.renderer = renderer
        self.policy = policy
        self.sampling = sampling
        self.session = session
        self.context_length = context_length
        self.turn_seed = turn_seed
        self.segment = Segment()
        self.earlier: list[Segment] = []
        self.num_turns = 0
        self.last: Completion | None = None
        self.num_sampled = self.unrecorded_tokens = 0
        self._prefill = self._opening = ""
        """Text that the template wrote at the start of the next action."""

    def fork(self) -> Self:
        """A copy of this agent, with the same tokens so far.

        Later tokens of one agent do not change the other agent.

        The copy has the same ``session`` and ``turn_seed`` until the caller changes them.
        """
        twin = copy.copy(self)
        twin.segment, twin.earlier = self.segment.copy(), [*self.earlier]
        return twin

    def start(
        self,
        observation: str,
        system: str | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read the episode's first observation and its rules.

        Args:
            observation: the environment's text.
            system: the environment's rules.
            stop: the environment's stop strings.
            prefill: text with which each of the agent's messages starts. It is not part of the
                actions' texts.
            tools: tools that the chat template shows to the model.

        Raises:
            ValueError: a stop string is empty.
        """
        if "" in stop:
            raise ValueError("stop holds an empty string, which would stop at once")
        self._prefill = prefill
        tokens = self.renderer.begin(observation, system, tools) + self._opened()
        self.segment.append_context(tokens, turn=self.num_turns)
        self.sampling = dataclasses.replace(
            self.sampling,
            stop=(*self.sampling.stop, *stop),
            stop_token_ids=(*self.sampling.stop_token_ids, *self.renderer.end_token_ids),
        )

    def observe(self, observation: str, *, continues: bool) -> None:
        """Read the observation after an action.

        Args:
            observation: the environment's text.
            continues: whether the observation continues the assistant's message. If False, it is a
                separate message.
        """
        tokens = self._observed(observation, continues=continues)
        self.segment.append_context(tokens, turn=self.num_turns)

    def _observed(self, observation: str, *, continues: bool) -> list[int]:
        """The tokens of an observation after an action."""
        if continues:
            return self.renderer.splice(observation)
        return self.renderer.observe(observation, last=self._last_token()) + self._opened()

    def _last_token(self) -> int | None:
        return None if self.last is None else self.last.last_token

    def _opened(self) -> list[int]:
        """Begin an assistant's message, and return the prefill's tokens.

        The result is empty if there is no prefill, or if the template writes the prefill itself.
        """
        if not self._prefill:
            self._opening = self.renderer.opening
            return []
        there = self.renderer.opening.rstrip().endswith(self._prefill.rstrip())
        return [] if there else self.renderer.splice(self._prefill)

    async def act(self) -> Action:
        """Sample the next action. Its text includes a tag that the template opened.

        Raises:
            ContextFull: the context window has no room for another token.
            PolicyFailure: the policy failed.
        """
        room = self.context_length - len(self.segment)
        if room < 1:
            raise ContextFull
        seed = self.turn_seed(self.num_turns) if self.turn_seed else self.sampling.seed
        sampling = dataclasses.replace(
            self.sampling, seed=seed, max_tokens=min(self.sampling.max_tokens, room)
        )
        completion = await self.policy.generate([*self.segment.token_ids], sampling, self.session)
        self.segment.append_completion(completion, turn=self.num_turns)
        self.last, self.num_sampled = completion, len(completion.token_ids)
        self.num_turns += 1
        text = self.renderer.text(completion.token_ids, self.sampling.stop)
        opening, self._opening = self._opening, ""
        return Action(opening + text, completion.finish_reason)

"""Whoever acts in an episode: text in, action out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import Policy
from agents.renderer import Renderer
from agents.segment import Segment
from envs.episode import Action


class ContextFull(Exception):
    """Raised when the conversation leaves no room for another token in the context window."""


class TokenAgent:
    """An agent for one episode whose every token is recorded and trainable.

    ``start`` and ``observe`` append what it reads, ``act`` appends what the policy samples;
    ``segment`` holds it all.

    Args:
        renderer: turns text into tokens.
        policy: samples completions.
        sampling: how; its stop strings and stop tokens are completed by the episode's.
        session: the episode's name, under which the policy may keep its cache.
        context_length: the model's window in tokens.
        turn_seed: gives the sampling seed of each turn; None leaves seeding to the policy.

    Attributes:
        num_turns: turns of the episode so far. Where others act in it as well, whoever plays sets
            it before the agent reads: turns are counted over all of them.
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
        self.num_turns = 0
        self.last: Completion | None = None
        self._prefill = self._opening = ""
        """What the next action begins with, which the template wrote."""

    def fork(self) -> TokenAgent:
        """A second agent that has read and said the same; what each does next is its own.

        It has this one's ``session`` and ``turn_seed`` until it is given others.
        """
        twin = copy.copy(self)
        twin.segment = self.segment.copy()
        return twin

    def start(
        self,
        observation: str,
        system: str | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read the episode's first observation, and the rules that hold for it.

        Args:
            observation: the environment's text.
            system: its rules.
            stop: its stop strings.
            prefill: what each message of the agent begins with; no part of the actions' texts.
            tools: what the model's chat template shows it.

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
        """Read what the last action led to.

        Args:
            observation: the environment's text.
            continues: whether it stands inside the assistant's message or is one of its own.
        """
        if continues:
            tokens = self.renderer.splice(observation)
        else:
            ended = self.last is not None and self.last.finish_reason is FinishReason.STOP_TOKEN
            tokens = self.renderer.observe(observation, ended=ended) + self._opened()
        self.segment.append_context(tokens, turn=self.num_turns)

    def _opened(self) -> list[int]:
        """Begin a message; the tokens of the environment's prefill, where it is not there yet."""
        if not self._prefill:
            self._opening = self.renderer.opening
            return []
        there = self.renderer.opening.rstrip().endswith(self._prefill.rstrip())
        return [] if there else self.renderer.splice(self._prefill)

    async def act(self) -> Action:
        """Sample the next action; a tag that the template opened for it is part of its text.

        Raises:
            ContextFull: there is no room for one more token.
            PolicyFailure: the policy cannot answer.
        """
        room = self.context_length - len(self.segment)
        if room < 1:
            raise ContextFull
        seed = self.turn_seed(self.num_turns) if self.turn_seed else self.sampling.seed
        sampling = dataclasses.replace(
            self.sampling, seed=seed, max_tokens=min(self.sampling.max_tokens, room)
        )
        completion = await self.policy.generate(self.segment.token_ids, sampling, self.session)
        self.segment.append_completion(completion, turn=self.num_turns)
        self.last = completion
        self.num_turns += 1
        text = self.renderer.text(completion.token_ids, self.sampling.stop)
        opening, self._opening = self._opening, ""
        return Action(opening + text, completion.finish_reason)

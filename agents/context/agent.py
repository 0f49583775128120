"""An agent whose conversation continues in a new segment when it fills its context.

A summary is sampled at the end of the old segment, where its tokens are trained. The new segment
begins with the system message and one user message: the task, the summary and the latest
observation. None of these tokens is trained a second time. This is compaction as part of the
policy, as in CompactionRL (arXiv 2607.05378).

A summary belongs to the turn that follows: the turn consists of the summary's tokens in the old
segment, and of the action's tokens in the new segment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from agents.agent import ContextFull, TokenAgent
from agents.completion import SamplingParams
from agents.context.settings import ContextConfig
from agents.policy import Policy
from agents.renderer import Renderer
from agents.segment import Segment
from envs.episode import Action

SUMMARY = "Summary of the earlier turns:"
"""Text before a summary."""
DROPPED = "Earlier turns were left out."
"""Text in place of dropped turns."""
_END_OF_THOUGHT = "</think>"


class CompactingAgent(TokenAgent):
    """A :class:`~agents.agent.TokenAgent` that compacts its conversation.

    The conversation is compacted before an observation after which the context would lack room for
    a turn (``sampling.max_tokens``) and, with ``compact=summary``, for the request of a summary.

    Args:
        renderer: turns text into tokens.
        policy: samples completions.
        sampling: sampling parameters. The episode adds its stop strings and stop tokens.
        compaction: what is kept, and the limit of a context.
        session: the episode's name, for the policy's cache.
        context_length: the model's context window in tokens. ``compaction.tokens`` can lower it.
        turn_seed: returns the sampling seed of a turn, and of turn ``-1 - t`` for the summary
            before turn t. If None, the policy chooses seeds.
    """

    def __init__(
        self,
        renderer: Renderer,
        policy: Policy,
        sampling: SamplingParams,
        compaction: ContextConfig,
        *,
        session: str,
        context_length: int,
        turn_seed: Callable[[int], int] | None = None,
    ) -> None:
        limit = min(compaction.tokens or context_length, context_length)
        super().__init__(
            renderer,
            policy,
            sampling,
            session=session,
            context_length=limit,
            turn_seed=turn_seed,
        )
        self.compaction = compaction
        self._summary_sampling = dataclasses.replace(
            sampling,
            stop_token_ids=(*sampling.stop_token_ids, *renderer.end_token_ids),
            max_tokens=compaction.summary_tokens,
        )
        self._task = ""
        self._system: str | None = None
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._pending: tuple[str, bool] | None = None
        """The observation that the next action reads, and whether it continues the message."""
        self._latest = ""
        """The latest observation. Empty before the first turn, when it is the task."""
        self._marks: list[tuple[str, int]] = []
        """Of each turn in the segment: its observation, and the position of its action."""

    def fork(self) -> Self:
        """A copy of this agent, with the same segments so far."""
        twin = super().fork()
        twin._marks = [*self._marks]
        return twin

    def start(
        self,
        observation: str,
        system: str | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Read the episode's first observation, which every context keeps, and its rules."""
        super().start(observation, system, stop, prefill, tools)
        self._task, self._system, self._tools = str(observation), system, tuple(tools)

    def observe(self, observation: str, *, continues: bool) -> None:
        """Keep the observation until the next action, which may compact the conversation first."""
        self._pending = (observation, continues)

    async def act(self) -> Action:
        """Compact the conversation if it is full, and sample the next action.

        Raises:
            ContextFull: the task, the summary and the observation do not fit into a context.
            PolicyFailure: the policy failed.
        """
        summarized = 0
        if self._pending is not None:
            summarized = await self._read(*self._pending)
            self._pending = None
        if self.compaction.compact == "drop":
            self._marks.append((self._latest, len(self.segment)))
        action = await super().act()
        self.num_sampled += summarized
        return action

    async def _read(self, observation: str, continues: bool) -> int:
        """Append an observation, and return the number of a summary's trained tokens."""
        tokens = self._observed(observation, continues=continues)
        self._latest = str(observation)
        room = self.context_length - len(self.segment) - len(tokens)
        if self.compaction.compact == "drop":
            if room < self.sampling.max_tokens:
                self._drop(tokens)
            else:
                self.segment.append_context(tokens, turn=self.num_turns)
            return 0
        request = self._request()
        if room >= self.sampling.max_tokens + len(request) + self.compaction.summary_tokens:
            self.segment.append_context(tokens, turn=self.num_turns)
            return 0
        return await self._summarize(request)

    def _request(self) -> list[int]:
        """The tokens that ask for a summary."""
        return self.renderer.observe(self.compaction.instruction, last=self._last_token())

    async def _summarize(self, request: Sequence[int]) -> int:
        """Sample a summary, begin a new segment, and return the number of trained tokens."""
        limit = self.context_length
        free = min(limit - len(self.segment) - len(request), limit - 1 - len(self._summarized("")))
        if free < 1:
            raise ContextFull
        self.segment.append_context(request, turn=self.num_turns)
        seed = self.turn_seed(-1 - self.num_turns) if self.turn_seed else self.sampling.seed
        sampling = dataclasses.replace(
            self._summary_sampling, seed=seed, max_tokens=min(self.compaction.summary_tokens, free)
        )
        completion = await self.policy.generate([*self.segment.token_ids], sampling, self.session)
        trained = self.compaction.train_summaries
        if trained:
            self.segment.append_completion(completion, turn=self.num_turns)
        else:
            self.segment.append_context(completion.token_ids, turn=self.num_turns)
        text = self.renderer.text(completion.token_ids, sampling.stop)
        summary = text.rpartition(_END_OF_THOUGHT)[2].strip()
        tokens = self._summarized(summary)
        # Encoding a sampled text again can give more tokens.
        while summary and len(tokens) >= limit:
            summary = summary[: -(len(tokens) - limit + 1)]
            tokens = self._summarized(summary)
        self._renew(tokens)
        return len(completion.token_ids) if trained else 0

    def _summarized(self, summary: str) -> list[int]:
        """The first tokens of a context with this summary and the latest observation."""
        return self._headed(f"{SUMMARY}\n{summary}", self._latest)

    def _headed(self, *texts: str) -> list[int]:
        """The first tokens of a context: the rules, and the task with ``texts`` after it."""
        message = "\n\n".join([self._task, *texts])
        return self.renderer.begin(message, self._system, self._tools) + self._opened()

    def _drop(self, tokens: Sequence[int]) -> None:
        """Leave out the oldest turns until half of a context is free, or until none is left.

        The oldest turn that stays gives its observation to the first message. Its action and all
        later tokens stay as they are.
        """
        ids, now = [*self.segment.token_ids], len(self.segment)
        for oldest, (observation, begin) in [*enumerate(self._marks)][1:]:
            head = self._headed(DROPPED, observation)
            if len(head) + now - begin + len(tokens) <= self.context_length // 2:
                shift = len(head) - begin
                marks = [(seen, at + shift) for seen, at in self._marks[oldest:]]
                self._renew([*head, *ids[begin:], *tokens])
                self._marks = marks
                return
        head = self._headed(DROPPED, self._latest)
        if len(head) >= self.context_length:
            raise ContextFull
        self._renew(head)

    def _renew(self, tokens: Sequence[int]) -> None:
        """Begin a new segment with ``tokens`` as context."""
        self.earlier.append(self.segment)
        self.segment = Segment(role=self.segment.role)
        self.segment.append_context(tokens, turn=self.num_turns)
        self._marks = []

"""One episode of an agent that uses a vendor's API: its requests, conversations and reward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agents.capture.errors import ApiError, warn_once
from agents.capture.history import Cut, History
from agents.capture.messages import Message, answer_fields, as_sampled, key_of
from agents.capture.record import Capture, CapturedCall, CapturedTurn, in_order
from agents.capture.request import ChatRequest
from agents.capture.tool_calls import Said, read_calls
from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import Policy, PolicyFailure
from agents.renderer import Renderer
from agents.segment import Segment
from tools.syntax import split_reasoning

LARGEST_NUMBER = 1e15
"""Maximum magnitude of a reward or score, so that squares of returns fit into 32-bit floats."""


class Limit(StrEnum):
    """A limit that an episode reached. The values are those of ``envs.episode.StopReason``."""

    CONTEXT_FULL = "context_full"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"


@dataclass(frozen=True, kw_only=True)
class CaptureLimits:
    """Limits of an episode."""

    context_length: int
    """The model's context window, in tokens."""
    max_turns: int = 0
    """Maximum number of answers; 0 sets no limit."""
    episode_tokens: int = 0
    """Maximum number of sampled tokens over all answers; 0 sets no limit."""
    completion_timeout_s: float = 1800.0
    """Maximum seconds per answer. The time that the request spends in the policy's queue does not
    count."""
    at_once: int = 0
    """Maximum number of concurrent requests to the policy; 0 sets no limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request."""

    turn: int
    """Number of the answer in the episode. It is part of the answer's id."""
    content: str
    calls: list[CapturedCall]
    completion: Completion
    num_prompt_tokens: int
    reasoning: str = ""
    """The reasoning, if the request splits it from the content."""
    stop: str | None = None
    """The request's stop string that ended the answer, or None."""

    @property
    def finish_reason(self) -> str:
        """OpenAI's name for the finish reason."""
        if self.calls:
            return "tool_calls"
        cut = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
        return "length" if self.completion.finish_reason in cut else "stop"


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What the policy reads for a request."""

    cut: Cut | None
    """The position from which the request continues, or None if it begins a conversation."""
    keys: list[str]
    """Keys of the request's messages."""
    tools: str
    """The tools that the model sees, as one text."""
    context: list[int]
    """The tokens that the request adds."""
    token_ids: list[int]
    """The tokens of the conversation and of ``context``."""


class CapturedEpisode:
    """Answers an agent's requests with a policy, and records every token.

    Args:
        renderer: turns messages into tokens.
        policy: samples completions.
        sampling: sampling parameters, which override those of the agent. The agent can only lower
            ``max_tokens`` and add stop strings.
        session: the episode's name, for the policy's cache.
        limits: limits of the episode.
        turn_seed: called with a request's number, in order of arrival; returns the request's
            sampling seed. If None, the policy chooses seeds.

    Attributes:
        rewards: rewards by name, or None until they are posted.
        scores: scores by name. Scores are not rewards.
        failure: the reason why the policy failed, or None. A failed episode has no reward.
        limit: the limit that the last request reached, or None. A limit truncates the episode.
    """

    def __init__(
        self,
        renderer: Renderer,
        policy: Policy,
        sampling: SamplingParams,
        *,
        session: str,
        limits: CaptureLimits,
        turn_seed: Callable[[int], int] | None = None,
    ) -> None:
        self.renderer, self.policy, self.sampling = renderer, policy, sampling
        self.session, self.limits, self.turn_seed = session, limits, turn_seed
        self.rewards: dict[str, float] | None = None
        self.scores: dict[str, float] = {}
        self.failure: PolicyFailure | None = None
        self.limit: Limit | None = None
        self.closed = False
        self.asking: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns a context that encloses each request to the policy."""
        self._history = History()
        self._turns: list[CapturedTurn] = []
        self._refused: Segment | None = None
        self._system: str | None = None
        self._num_requests = 0
        self._permits = asyncio.Semaphore(limits.at_once) if limits.at_once else None

    async def answer(self, request: ChatRequest) -> Answer:
        """Sample an answer and record it.

        Raises:
            ApiError: the episode is over or at a limit, the messages do not fit, or the policy
                failed.
        """
        self._check_open()
        self._system = self._system or _system_of(request.messages)
        prompt = self._prompt(request)
        sampling = self._sampling(request, prompt.token_ids)
        asked_at = asyncio.get_running_loop().time()
        completion = await self._sample(prompt.token_ids, sampling)
        # During sampling the agent may have posted the reward, or the episode may have timed out.
        self._check_open()
        self.limit = None
        answer, text = self._read(request, completion, len(prompt.token_ids))
        cut = prompt.cut
        self._record_results(request, cut)
        fields = answer_fields(answer.content, [_as_field(call) for call in answer.calls])
        index = self._history.grow(
            cut,
            [*prompt.keys, key_of(fields)],
            prompt.tools,
            prompt.context,
            completion,
            answer.turn,
        )
        read = "\n".join(m.content for m in request.messages[cut.num_messages if cut else 0 :])
        now = asyncio.get_running_loop().time()
        turn = CapturedTurn(index, read, text, completion, answer.calls, asked_at, now)
        self._turns.append(turn)
        return answer

    def count_tokens(self, request: ChatRequest) -> int:
        """The number of tokens that the policy would read for a request. Records nothing.

        Raises:
            ApiError: the episode is over, or the chat template rejects the messages.
        """
        self._check_open()
        return len(self._prompt(request).token_ids)

    def settle(self, rewards: Mapping[str, float], scores: Mapping[str, float]) -> None:
        """Set the episode's reward, which ends the episode.

        Raises:
            ApiError: the episode was already over, or a value is not finite.
        """
        self._check_open()
        for kind, values in (("reward", rewards), ("scores", scores)):
            for name, value in values.items():
                # `not <=` instead of `>`, so that nan fails.
                if not abs(value) <= LARGEST_NUMBER:
                    problem = (
                        f"{kind} {name!r} ({value}) must be finite, at most {LARGEST_NUMBER:g}"
                    )
                    raise ApiError(400, problem, param=kind)
        self.rewards, self.scores = dict(rewards), dict(scores)

    def captured(self) -> Capture:
        """The recorded episode. Call this method only while no request runs."""
        segments = [branch.segment for branch in self._history.branches]
        if not segments and self._refused is not None:
            segments = [self._refused]
        return in_order(segments, self._turns, self._system)

    def _check_open(self) -> None:
        if self.closed:
            raise ApiError(404, "this episode has ended", code="episode_over")
        if self.rewards is not None:
            raise ApiError(409, "this episode has its reward, and is over", code="episode_over")
        if self.failure is not None:
            raise self._failed(self.failure)

    def _prompt(self, request: ChatRequest) -> _Prompt:
        """Find the request's place in the history, and render its new messages."""
        calls = {
            call.id: (call.name, call.arguments) for turn in self._turns for call in turn.calls
        }
        messages = tuple(as_sampled(message, calls) for message in request.messages)
        request = replace(request, messages=messages)
        keys = [message.key for message in messages]
        tools = _as_text(request.tools) if self.renderer.takes_tools else ""
        cut = self._history.find(keys, tools)
        context = self._context(request, cut)
        before = self._history.tokens(cut) if cut is not None else []
        return _Prompt(cut, keys, tools, context, [*before, *context])

    def _context(self, request: ChatRequest, cut: Cut | None) -> list[int]:
        """The tokens that a request adds to the conversation that it continues."""
        takes_tools = self.renderer.takes_tools
        if request.tools and not takes_tools:
            warn_once(
                "the chat template has no tools: the model does not see the tools of requests"
            )
        new = request.messages[cut.num_messages if cut is not None else 0 :]
        rendered = [message.rendered(takes_tools=takes_tools) for message in new]
        try:
            if cut is None:
                self._warn_of_edits([message.key for message in request.messages])
                return self.renderer.start(rendered, request.tools)
            if not cut.answered:
                return []
            # The most common case, and the quickest to render.
            if len(new) == 1 and new[0].role == "user" and len(new[0].fields) == 2:
                return self.renderer.extend(new[0].content, last=cut.last, role=new[0].role)
            return self.renderer.follow(rendered, last=cut.last)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages") from error

    def _warn_of_edits(self, keys: list[str]) -> None:
        place = self._history.edited(keys)
        if place is not None:
            warn_once(
                f"an agent sent messages[{place}], an answer of the model, back with other words "
                "(stripped, perhaps): what follows is read and trained as another conversation"
            )

    def _sampling(self, request: ChatRequest, prompt: list[int]) -> SamplingParams:
        """Sampling parameters of the answer.

        Raises:
            ApiError: the episode is at a limit.
        """
        asked, own, limits = request.overruled or {}, self.sampling, self.limits
        decided = {"temperature": own.temperature, "top_p": own.top_p, "top_k": own.top_k}
        differing = {k: v for k, v in asked.items() if k in decided and v != decided[k]}
        if differing:
            given = ", ".join(f"{name}={value}" for name, value in differing.items())
            warn_once(
                f"an agent asks for {given}: it is sampled at temperature={own.temperature:g}, "
                f"top_p={own.top_p:g}, top_k={own.top_k} all the same, as the run says"
            )
        room = limits.context_length - len(prompt)
        if room < 1:
            self._refuse(Limit.CONTEXT_FULL, prompt)
        if limits.max_turns and len(self._turns) >= limits.max_turns:
            self._refuse(Limit.TURN_LIMIT, prompt)
        sampled = sum(len(turn.completion.token_ids) for turn in self._turns)
        if limits.episode_tokens and sampled >= limits.episode_tokens:
            self._refuse(Limit.TOKEN_LIMIT, prompt)
        seed = self.turn_seed(self._num_requests) if self.turn_seed else own.seed
        self._num_requests += 1
        return replace(
            own,
            max_tokens=min(own.max_tokens, room, request.max_tokens or own.max_tokens),
            stop=(*own.stop, *request.stop),
            stop_token_ids=(*own.stop_token_ids, *self.renderer.end_token_ids),
            seed=seed,
        )

    def _refuse(self, limit: Limit, prompt: list[int]) -> None:
        """Reject a request at a limit. The episode is truncated unless a later request succeeds."""
        self.limit = limit
        if not self._history.branches:
            self._refused = Segment()
            self._refused.append_context(prompt, 0)
        context, turns = self.limits.context_length, self.limits.max_turns
        if limit is Limit.CONTEXT_FULL:
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens. However, your messages "
                f"resulted in {len(prompt)} tokens. Please reduce the length of the messages.",
                param="messages",
                code="context_length_exceeded",
            )
        if limit is Limit.TURN_LIMIT:
            problem = f"an episode has at most {turns} answers"
        else:
            problem = f"an episode has at most {self.limits.episode_tokens} sampled tokens"
        raise ApiError(400, problem, code=f"{limit.value}_exceeded")

    async def _sample(self, prompt: list[int], sampling: SamplingParams) -> Completion:
        if self._permits is None:
            with self.asking():
                return await self._ask(prompt, sampling)
        async with self._permits:
            with self.asking():
                return await self._ask(prompt, sampling)

    async def _ask(self, prompt: list[int], sampling: SamplingParams) -> Completion:
        """Sample within the deadline. If the deadline passes, the episode fails."""
        queued = self.policy.queued_s(self.session)
        limit_s = self.limits.completion_timeout_s
        asked = asyncio.ensure_future(self.policy.generate(prompt, sampling, self.session))
        try:
            left = limit_s
            while left > 0 and not asked.done():
                began = asyncio.get_running_loop().time()
                await asyncio.wait([asked], timeout=left)
                waited = max(0.0, self.policy.queued_s(self.session) - queued)
                queued += waited
                left -= asyncio.get_running_loop().time() - began - waited
            if not asked.done():
                raise PolicyFailure(f"no completion within {limit_s:g} s", retryable=True)
            return asked.result()
        except PolicyFailure as failure:
            self.failure = failure
            raise self._failed(failure) from failure
        except ValueError as error:
            self.failure = PolicyFailure(f"the policy refuses: {error}", retryable=False)
            raise self._failed(self.failure) from error
        finally:
            asked.cancel()

    @staticmethod
    def _failed(failure: PolicyFailure) -> ApiError:
        return ApiError(503, f"the policy failed: {failure}", "server_error", code="policy_failure")

    def _read(
        self, request: ChatRequest, completion: Completion, num_prompt_tokens: int
    ) -> tuple[Answer, str]:
        """The answer for the agent, and the whole sampled text."""
        stop = (*self.sampling.stop, *request.stop)
        text = self.renderer.text(completion.token_ids, stop)
        # As with OpenAI, the stop string is not part of the answer.
        end = next((s for s in request.stop if text.endswith(s)), None)
        if completion.finish_reason is not FinishReason.STOP_STRING:
            end = None
        content, reasoning = text.removesuffix(end or ""), ""
        opening = self.renderer.opening
        said = read_calls(content, request.tools, opening) if request.calls else Said(content, ())
        if request.splits_reasoning:
            reasoning, content = split_reasoning(said.content, opening)
            said = replace(said, content=content)
        turn, delivered = len(self._turns), said.calls[: 1 if request.one_call else None]
        calls = [
            CapturedCall(f"c{turn:05d}{index:03d}", name, arguments)
            for index, (name, arguments) in enumerate(delivered)
        ]
        answer = Answer(turn, said.content, calls, completion, num_prompt_tokens, reasoning, end)
        return answer, text

    def _record_results(self, request: ChatRequest, cut: Cut | None) -> None:
        """Record the tool results for the calls of the answer that a request continues."""
        if cut is None or not cut.answered:
            return
        results = {
            str(message.fields.get("tool_call_id")): message.content
            for message in request.messages[cut.num_messages :]
            if message.role == "tool"
        }
        for call in self._turns[cut.turn].calls:
            call.result = results.get(call.id, call.result)


def _system_of(messages: tuple[Message, ...]) -> str | None:
    return messages[0].content if messages[0].role == "system" else None


def _as_text(tools: tuple[Mapping[str, Any], ...]) -> str:
    return json.dumps(tools, sort_keys=True) if tools else ""


def _as_field(call: CapturedCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}

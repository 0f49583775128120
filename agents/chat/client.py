"""A client of an OpenAI-compatible chat API, with deadlines, retries and rate limits."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp

from agents.agent import ContextFull
from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
"""Seconds before the first and before a late retry, if the server does not name a time. Each wait
is lengthened by a random share of 0 to 100%."""
_RETRYABLE = (408, 409, 425, 429)
"""Statuses below 500 after which a request is retried."""
_SHOWN = 300
"""Maximum number of characters of a server's error that messages quote."""
_FULL = (
    *("context_length_exceeded", "maximum context length", "context window"),
    # vLLM 0.32, for a prompt of exactly the window's length.
    "max_tokens must be at least 1, got 0",
)
"""Texts in errors of servers whose context window is full."""
_NEUTRAL = {
    **{"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""Values that leave the model's distribution as it is. A server may have others as its defaults, as
vLLM takes them from a model's ``generation_config.json``."""
_STOPPED = ("stop", "tool_calls", "function_call", "eos_token", "stop_sequence", "end_turn")
_ENDS = dict.fromkeys(_STOPPED, FinishReason.STOP_TOKEN)
_ENDS |= dict.fromkeys(("length", "max_tokens", "model_length"), FinishReason.LENGTH)
_BROKEN_OFF = ("abort", "error")
"""Reasons of an answer that the server broke off, for example for an update of its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """Limits of the requests to a chat API."""

    timeout_s: float = 300.0
    """Seconds that one attempt may take."""
    deadline_s: float = 1800.0
    """Seconds that a request may take in all, with its retries and the waits between them."""
    concurrent: int = 32
    """Maximum number of concurrent requests."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A model's answer to a conversation."""

    content: str
    reasoning: str
    """The reasoning that the server separated from the content; empty if there is none."""
    calls: tuple[Mapping[str, Any], ...]
    """Tool calls in the API's form."""
    finish_reason: FinishReason
    stop: str | None
    """The stop string that ended the answer, if the server names it."""
    num_tokens: int
    """Number of sampled tokens that the server reports; 0 if it reports none."""


class _Temporary(Exception):
    """Raised when an attempt failed and can be repeated.

    Args:
        message: the reason.
        kind: the kind of failure, in one word: a status, "timeout" or "connection".
        after_s: seconds after which the server allows a retry, or None if it names none.
    """

    def __init__(self, message: str, kind: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.after_s = after_s


class _Unsupported(Exception):
    """Raised when a server refuses fields that are set to their neutral values.

    Args:
        fields: their names.
    """

    def __init__(self, fields: set[str]) -> None:
        super().__init__(", ".join(sorted(fields)))
        self.fields = fields


class ChatModel(Protocol):
    """A model that reads messages and returns texts."""

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]] = (),
        session: str = "",
    ) -> ChatAnswer:
        """The model's answer to a conversation; see :meth:`ChatClient.complete`."""
        ...


class ChatClient:
    """A client of one model.

    Args:
        session: the HTTP session, which the caller closes.
        url: root of the API: ``http://host:port/v1``.
        model: the model's name on the server.
        key: the bearer token, or "" if the API needs none.
        limits: deadlines, and the number of concurrent requests.
        body: further fields of each request. They replace fields of the same name, and None removes
            a field.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        key: str = "",
        limits: ChatLimits | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self.model = model
        self.limits = limits or ChatLimits()
        self.requests = 0
        """Number of answered requests."""
        self.retries = Counter[str]()
        """Numbers of repeated attempts by the kind of failure: "status_429", "timeout"."""
        self._session = session
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._body = dict(body or {})
        self._unsupported: set[str] = set()
        """Fields that the server refused at their neutral values, and that are left out."""
        self._permits = asyncio.Semaphore(self.limits.concurrent)
        self._queued_s: dict[str, float] = defaultdict(float)
        # Unseeded jitter: many callers must not retry at the same moments.
        self._jitter = random.Random()

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]] = (),
        session: str = "",
    ) -> ChatAnswer:
        """The model's answer to a conversation.

        Args:
            messages: the conversation, in the API's form.
            sampling: parameters of the answer. All that change the distribution are sent, also
                neutral ones, which a server may refuse: then it has no such parameter.
            tools: tools that the model can call.
            session: name of the episode, whose time in the queue is counted.

        Raises:
            ContextFull: the conversation is longer than the model's context window.
            PolicyFailure: the server refuses the request, or gives no answer in time.
        """
        async with self._permit(session):
            ends = time.monotonic() + self.limits.deadline_s
            attempt = 0
            while True:
                request = self._request(messages, sampling, tools)
                try:
                    answer = await self._attempt(request, ends - time.monotonic())
                except _Unsupported as refused:
                    self._unsupported |= refused.fields
                except _Temporary as failure:
                    wait_s = failure.after_s
                    # A time of 0, or in the past by this machine's clock, names none.
                    if not wait_s:
                        wait_s = min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S)
                        wait_s *= 1 + self._jitter.random()
                    if time.monotonic() + wait_s >= ends:
                        message = (
                            f"{self.url} gave no answer within {self.limits.deadline_s:g} s and "
                            f"{attempt + 1} attempts; the last: {failure}"
                        )
                        raise PolicyFailure(message, retryable=False) from failure
                    await asyncio.sleep(wait_s)
                    attempt += 1
                    self.retries[failure.kind] += 1
                else:
                    self.requests += 1
                    return answer

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a permit, so far."""
        return self._queued_s.get(session, 0.0)

    def end(self, session: str) -> None:
        """Forget a finished session."""
        self._queued_s.pop(session, None)

    @asynccontextmanager
    async def _permit(self, session: str) -> AsyncIterator[None]:
        asked = time.monotonic()
        async with self._permits:
            self._queued_s[session] += time.monotonic() - asked
            yield

    def _request(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            **_NEUTRAL,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or _NEUTRAL["top_k"],
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "tools": list(tools) or None,
        }
        for name in self._unsupported:
            if request[name] == _NEUTRAL[name]:
                del request[name]
        request |= self._body
        return {name: value for name, value in request.items() if value is not None}

    async def _attempt(self, request: Mapping[str, Any], left_s: float) -> ChatAnswer:
        limit_s = max(0.001, min(self.limits.timeout_s, left_s))
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.post(
                self.url, json=request, headers=self._headers, timeout=timeout
            ) as response:
                text = await response.text(errors="replace")
                status, after = response.status, response.headers.get("Retry-After")
        except TimeoutError as error:
            raise _Temporary(f"no answer within timeout_s ({limit_s:.3g} s)", "timeout") from error
        except (aiohttp.InvalidURL, aiohttp.TooManyRedirects) as error:
            message = f"{self.url} cannot be requested ({type(error).__name__}): check the URL"
            raise PolicyFailure(message, retryable=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Temporary(f"{type(error).__name__}: {error}", "connection") from error
        if status >= 500 or status in _RETRYABLE:
            message = f"status {status}: {_error_in(text)}"
            raise _Temporary(message, f"status_{status}", _seconds(after))
        if status >= 400:
            message = _error_in(text)
            if status in (400, 413) and any(sign in text.lower() for sign in _FULL):
                raise ContextFull
            if status in (400, 422) and (names := self._refused(request, text)):
                raise _Unsupported(names)
            raise PolicyFailure(f"{self.url} answered {status}: {message}", retryable=False)
        return self._read(text)

    def _refused(self, request: Mapping[str, Any], error: str) -> set[str]:
        """Neutral fields of a request that an error names, except those of ``body``."""
        sent = {name for name in _NEUTRAL if request.get(name) == _NEUTRAL[name]}
        return {name for name in sent - self._body.keys() if name in error}

    def _read(self, text: str) -> ChatAnswer:
        try:
            found = json.loads(text)
            choice = found["choices"][0]
            message, ended = choice["message"], choice.get("finish_reason") or "stop"
            stop = choice.get("stop_reason")
            usage = found.get("usage") or {}
            answer = ChatAnswer(
                content=_text(message.get("content")),
                reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
                calls=tuple(map(_call, message.get("tool_calls") or ())),
                finish_reason=_ENDS.get(ended, FinishReason.LENGTH),
                stop=stop if isinstance(stop, str) else None,
                num_tokens=int(usage.get("completion_tokens") or 0),
            )
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise PolicyFailure(
                f"{self.url} did not answer in the API's form: {text[:_SHOWN]}", retryable=False
            ) from error
        if ended == "content_filter":
            raise PolicyFailure(f"{self.url} filtered the answer's content", retryable=False)
        if ended in _BROKEN_OFF:
            raise _Temporary(f"the answer was broken off ({ended})", ended)
        if ended not in _ENDS:
            message = f"{self.url} ended an answer with an unknown finish_reason ({ended})"
            raise PolicyFailure(message, retryable=False)
        return answer


def _text(content: Any) -> str:
    """The text of a message's content: a text, a list of parts, or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _call(found: Any) -> dict[str, Any]:
    """A tool call. A function or a call of another type than an object raises."""
    return {**found, "function": {**(found.get("function") or {})}}


def _seconds(after: str | None) -> float | None:
    """Seconds in the header Retry-After, which may be a number or a date."""
    if not after:
        return None
    try:
        return max(0.0, float(after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except ValueError:
        return None


def _error_in(text: str) -> str:
    """The message of a server's error."""
    try:
        message = json.loads(text)["error"]["message"]
    except (json.JSONDecodeError, LookupError, TypeError):
        message = text
    return str(message)[:_SHOWN]

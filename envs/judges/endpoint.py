"""A chat model behind an OpenAI-compatible endpoint: its text and log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from envs.judges.chooser import JudgeFailure, Message, normalised, prefixes
from tools.limits import CallLimits, LimitedCalls

SHOWN = 200
"""Maximum number of characters of a response that messages quote."""
MOST_ALTERNATIVES = 20
"""Maximum number of log-probabilities that the API returns for each position."""
_AROUND = " \t\n*\"'`"
_SPARED = (408, 425, 429)
"""HTTP statuses below 500 after which a request is retried."""


@dataclass(frozen=True, slots=True)
class SaidToken:
    """A token of a response."""

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()
    """The most likely tokens at this position, with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Said:
    """A response."""

    text: str
    tokens: tuple[SaidToken, ...] = ()
    """The response's tokens. Empty if log-probabilities were not requested, or if the API does
    not return them."""


class ChatEndpoint:
    """A client of a chat model: an asynchronous context manager for one event loop.

    Args:
        url: the API's root: ``http://host:port/v1``.
        model: the model's name in the API.
        key: bearer token, or "" if the API needs none.
        limits: limits of one response.

    Attributes:
        who: the model's name and URL, for messages.
    """

    def __init__(self, url: str, model: str, *, key: str = "", limits: CallLimits) -> None:
        self._url = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.who = f"the judge {model!r} at {self._url}"
        self._calls = LimitedCalls(self.who, limits)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # CallLimits set the deadline and the number of concurrent calls.
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def say(
        self, messages: Sequence[Message], *, max_tokens: int, logprobs: int | None = None
    ) -> Said:
        """The model's most likely response.

        Args:
            messages: the conversation.
            max_tokens: maximum tokens of the response.
            logprobs: number of alternative tokens to request for each token, with their
                log-probabilities. None requests no log-probabilities.

        Raises:
            ToolFailure: the model did not respond in time.
            JudgeFailure: the model refuses, or the response is malformed.
        """
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "temperature": 0.0,
            "max_tokens": max_tokens,
        }
        if logprobs is not None:
            request["logprobs"] = True
        if logprobs:
            request["top_logprobs"] = logprobs
        body = await self._calls.run(lambda: self._post(request), None)
        try:
            return _read(body["choices"][0])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self.unreadable("answer in the API's form", body) from error

    def unreadable(self, expected: str, said: object) -> JudgeFailure:
        """The exception for a model whose response contains no verdict."""
        return JudgeFailure(
            f"{self.who} must {expected}, and said {str(said)[:SHOWN]!r}", retryable=False
        )

    async def _post(self, request: Mapping[str, Any]) -> Any:
        assert self._session is not None, "entered before it is called"
        try:
            async with self._session.post(self._url, json=request) as response:
                if response.status != 200:
                    said = (await response.text(errors="replace"))[:SHOWN]
                    spared = response.status >= 500 or response.status in _SPARED
                    raise JudgeFailure(
                        f"{self.who} refuses (status {response.status}): {said}", retryable=spared
                    )
                return await response.json(content_type=None)
        except (aiohttp.ClientError, OSError) as error:
            raise JudgeFailure(
                f"{self.who} cannot be reached ({type(error).__name__}: {error})", retryable=True
            ) from error
        except ValueError as error:
            raise JudgeFailure(f"{self.who} does not answer in JSON", retryable=False) from error


class EndpointChooser:
    """A :class:`Chooser` that reads the log-probabilities of a chat model's first word.

    Args:
        endpoint: the model; its API must support ``top_logprobs``.
    """

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        """The probabilities of the options as the next words; see ``envs.judges.chooser.Chooser``.

        Raises:
            ToolFailure: the model did not respond in time.
            JudgeFailure: the model refuses, gives no log-probabilities, or says none of the
                options. Or the first token of a longer option is itself another option.
        """
        said = await self._endpoint.say(messages, max_tokens=4, logprobs=MOST_ALTERNATIVES)
        if not any(token.alternatives for token in said.tokens):
            raise JudgeFailure(
                f"{self._endpoint.who} gives no top_logprobs, which soft judgements need: take a "
                f"server that gives them",
                retryable=False,
            )
        # Tokens may begin with white space, or with a marker of it.
        first = next((token for token in said.tokens if token.text.strip(_AROUND)), None)
        masses = dict.fromkeys(options, 0.0)
        for text, logprob in first.alternatives if first is not None else ():
            if (word := text.strip(_AROUND)) in masses:
                masses[word] += math.exp(min(logprob, 0.0))
        for longer, shorter in prefixes(options):
            if masses[shorter] and not masses[longer]:
                raise JudgeFailure(
                    f"{self._endpoint.who} writes {longer!r} in several tokens, so that its "
                    f"probability is unknown: ask for options of one token each (scale=9)",
                    retryable=False,
                )
        if not sum(masses.values()):
            raise self._endpoint.unreadable(f"say one of {', '.join(options)}", said.text)
        return normalised(masses.values())


def _read(choice: Mapping[str, Any]) -> Said:
    said = choice["message"]["content"]
    if not isinstance(said, str):
        raise TypeError("the content is no text")
    given = (choice.get("logprobs") or {}).get("content") or []
    return Said(said, tuple(_token(token) for token in given))


def _token(token: Mapping[str, Any]) -> SaidToken:
    others = token.get("top_logprobs") or []
    return SaidToken(
        str(token["token"]),
        float(token["logprob"]),
        tuple((str(other["token"]), float(other["logprob"])) for other in others),
    )

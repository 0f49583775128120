"""A chat model behind an OpenAI-compatible endpoint, that says something, and how sure it is."""

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
"""Characters of an answer that messages show."""
MOST_ALTERNATIVES = 20
"""Tokens per position whose log-probabilities the API gives at most."""
_AROUND = " \t\n*\"'`"
_SPARED = (408, 425, 429)
"""Statuses below 500 that another attempt may spare us."""


@dataclass(frozen=True, slots=True)
class SaidToken:
    """A token of an answer."""

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens at its place, with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer."""

    text: str
    tokens: tuple[SaidToken, ...] = ()
    """None where log-probabilities were not asked for, or are not given."""


class ChatEndpoint:
    """Asks a chat model. Use it as an asynchronous context manager, on one loop.

    Args:
        url: the API's root: ``http://host:port/v1``.
        model: the model's name there.
        key: sent as a bearer token; "" for none.
        limits: of one answer.

    Attributes:
        who: what messages call it.
    """

    def __init__(self, url: str, model: str, *, key: str = "", limits: CallLimits) -> None:
        self._url = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.who = f"the judge {model!r} at {self._url}"
        self._calls = LimitedCalls(self.who, limits)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The deadline is ours; the number of connections is that of calls at once.
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
        """The model's likeliest answer.

        Args:
            messages: the conversation.
            max_tokens: of the answer.
            logprobs: how many alternatives to give with each token; None: no log-probabilities.

        Raises:
            ToolFailure: it did not answer in time.
            JudgeFailure: it refuses, or its answer has another form.
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
        """The failure of a model that does not say what it must."""
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
    """Chooses by the log-probabilities of the first word that a chat model says.

    Args:
        endpoint: the model; it must give ``top_logprobs``.
    """

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        """See ``envs.judges.chooser.Chooser``.

        Raises:
            ToolFailure: the model did not answer in time.
            JudgeFailure: it refuses, gives no log-probabilities, says none of the options, or
                writes one in several tokens of which another option is the first.
        """
        said = await self._endpoint.say(messages, max_tokens=4, logprobs=MOST_ALTERNATIVES)
        if not any(token.alternatives for token in said.tokens):
            raise JudgeFailure(
                f"{self._endpoint.who} gives no top_logprobs, which soft judgements need: take a "
                f"server that gives them",
                retryable=False,
            )
        # Some begin with white space, or with a mark.
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

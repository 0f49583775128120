"""A judge model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from envs.judges.chooser import JudgeFailure
from envs.judges.endpoint import ChatEndpoint, SaidToken
from envs.judges.verdicts import reference_messages
from envs.reference.judges import Judgement
from tools.limits import CallLimits

_LABELS = {"YES": True, "NO": False}
_AROUND = " \t\n.,!*\"'`"


class EndpointJudge:
    """A judge that asks a chat model for YES or NO.

    It is an asynchronous context manager, for one event loop.

    Args:
        url: the API's root: ``http://host:port/v1``.
        model: the judge's name in the API.
        key: bearer token, or "" if the API needs none.
        soft: whether to request log-probabilities, which the soft reward needs.
        limits: limits of one judgement.
    """

    def __init__(
        self, url: str, model: str, *, key: str = "", soft: bool = False, limits: CallLimits
    ) -> None:
        self._endpoint = ChatEndpoint(url, model, key=key, limits=limits)
        self._soft = soft

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._endpoint.__aexit__(kind, error, traceback)

    async def __call__(self, question: str, reference: str, answer: str) -> Judgement:
        """The model's judgement.

        Raises:
            ToolFailure: the model did not respond in time.
            JudgeFailure: the model refuses, or says neither YES nor NO.
        """
        messages = reference_messages(question, reference, answer)
        logprobs = 0 if self._soft else None
        said = await self._endpoint.say(messages, max_tokens=8, logprobs=logprobs)
        label = said.text.strip(_AROUND).upper()
        if label not in _LABELS:
            raise self._unreadable(said.text)
        if not self._soft:
            return Judgement(_LABELS[label])
        if not said.tokens:
            raise JudgeFailure(
                f"{self._endpoint.who} gives no logprobs, which reward='soft' needs: take "
                f"reward='binary', or a server that gives them",
                retryable=False,
            )
        return Judgement(_LABELS[label], self._probability(label, said.tokens))

    def _probability(self, label: str, tokens: Sequence[SaidToken]) -> float:
        """The joint probability of the response's tokens, up to the last token of the label."""
        text, total = "", 0.0
        for token in tokens:
            text += token.text
            total += token.logprob
            if label in text.upper():
                return math.exp(min(total, 0.0))
        raise self._unreadable(text)

    def _unreadable(self, said: object) -> JudgeFailure:
        return self._endpoint.unreadable("say YES or NO", said)

"""A policy with scripted completions, for tests, demonstrations and demos."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agents.completion import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:
    import torch


class ScriptedPolicy:
    """Completes each prompt with the tokens that ``respond`` returns, at log-probability 0.

    Args:
        respond: maps session and prompt ids to the completion's token ids.
        delay_s: seconds that each completion takes.
    """

    def __init__(
        self,
        respond: Callable[[str | None, Sequence[int]], Sequence[int]],
        *,
        delay_s: float = 0.0,
    ) -> None:
        self._respond = respond
        self._delay_s = delay_s
        self._version = 0

    shares_weights = True

    @property
    def version(self) -> int:
        """The version that the last ``load_weights`` set."""
        return self._version

    def begin(self, sessions: Sequence[str]) -> None:
        """Do nothing, because sessions have no state."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """The scripted tokens, up to the first stop token and at most ``max_tokens``."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        script = tuple(self._respond(session, prompt_ids))
        tokens = script[: sampling.max_tokens]
        ends = [i for i, token in enumerate(tokens) if token in sampling.stop_token_ids]
        if ends:
            tokens, reason = tokens[: ends[0] + 1], FinishReason.STOP_TOKEN
        elif len(script) > len(tokens) or not sampling.stop:
            reason = FinishReason.LENGTH
        else:
            reason = FinishReason.STOP_STRING
        count = len(tokens)
        return Completion(tokens, (0.0,) * count, (self._version,) * count, reason)

    def queued_s(self, session: str) -> float:
        """Always 0, because there is no queue."""
        return 0.0

    def end(self, session: str) -> None:
        """Do nothing, because sessions have no state."""

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Set the version. A script has no weights."""
        self._version = version

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        return {"policy": "scripted"}

    def take_metrics(self) -> dict[str, float]:
        """Always empty."""
        return {}

    async def close(self) -> None:
        """Do nothing, because there are no resources."""

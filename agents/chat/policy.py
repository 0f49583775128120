"""The bookkeeping of episodes whose model reads messages, in the form of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agents.chat.client import ChatClient
from agents.completion import Completion, SamplingParams
from agents.policy import PolicyFailure

if TYPE_CHECKING:
    import torch


class ChatPolicy:
    """The queue and the metrics of a :class:`ChatClient`; see :class:`~agents.policy.Policy`.

    Args:
        client: the model.
    """

    shares_weights = False
    version = 0

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    def begin(self, sessions: Sequence[str]) -> None:
        """No-op: the server knows no episodes."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Always raises: a chat API takes messages.

        Raises:
            PolicyFailure: always.
        """
        message = f"{self.client.url} takes messages, not token ids"
        raise PolicyFailure(message, retryable=False)

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a permit."""
        return self.client.queued_s(session)

    def end(self, session: str) -> None:
        """Forget a finished episode."""
        self.client.end(session)

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Always raises: the server keeps its own weights.

        Raises:
            PolicyFailure: always.
        """
        raise PolicyFailure(f"{self.client.url} keeps its own weights", retryable=False)

    def facts(self) -> dict[str, object]:
        """The API and the model."""
        return {"url": self.client.url, "served_model": self.client.model}

    def take_metrics(self) -> dict[str, float]:
        """The numbers of answered requests, of retries, and of retries by their reason."""
        retries = self.client.retries
        return {
            "policy/requests": float(self.client.requests),
            "policy/retries": float(retries.total()),
            **{f"policy/retries/{kind}": float(count) for kind, count in sorted(retries.items())},
        }

    async def close(self) -> None:
        """No-op: the caller closes the HTTP session."""

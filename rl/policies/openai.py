"""``policy=openai``: a model behind any OpenAI-compatible chat API, for evaluations."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from rl.errors import UsageError
from rl.policies.engine import PolicyContext, PolicyEngine, RunSettings

if TYPE_CHECKING:
    import torch

    from agents.chat import ChatClient
    from rl.settings.lora import LoraConfig


@dataclass(frozen=True, kw_only=True)
class OpenAIEndpoint(PolicyEngine):
    """A model behind an OpenAI-compatible chat API. It can be evaluated, but not trained."""

    samples_tokens = False

    url: str = "https://api.openai.com/v1"
    """Root of the API, as in http://host:port/v1."""
    model: str = ""
    """The model's name in the API."""
    key_env: str = ""
    """Name of the environment variable with the API's key; empty if the API needs none."""
    timeout_s: float = 300.0
    """Seconds that one attempt of a request may take."""
    deadline_s: float = 1800.0
    """Seconds that a request may take with its retries. If a server's Retry-After names a later
    time, the request fails without another attempt."""
    concurrent: int = 32
    """Maximum number of concurrent requests."""
    body: str = ""
    """Further fields of each request, as JSON: {"reasoning_effort": "low"}. A field with null is
    removed from the request."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url ({self.url}) must begin with http:// or https://")
        if self.key_env and self.key_env not in os.environ:
            raise ValueError(
                f"key_env ({self.key_env}) must name an environment variable that is set"
            )
        for name in ("timeout_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be above 0")
        if self.concurrent < 1:
            raise ValueError(f"concurrent ({self.concurrent}) must be at least 1")
        self.fields()

    def fields(self) -> dict[str, Any]:
        """The fields of ``body``.

        Raises:
            ValueError: ``body`` is no JSON object.
        """
        try:
            found = json.loads(self.body or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"body ({self.body}) must be a JSON object")
        return found

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ChatClient]:
        """A client of the API, open while the context lasts."""
        import aiohttp

        from agents.chat import ChatClient, ChatLimits

        limits = ChatLimits(
            timeout_s=self.timeout_s, deadline_s=self.deadline_s, concurrent=self.concurrent
        )
        key = os.environ[self.key_env] if self.key_env else ""
        # ChatLimits set the number of connections and the deadlines.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield ChatClient(
                session, self.url, self.model, key=key, limits=limits, body=self.fields()
            )

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject every command that needs token ids.

        Raises:
            UsageError: always.
        """
        self._refuse()

    async def open(self, context: PolicyContext) -> NoReturn:
        """Always raises, because the API returns no token ids.

        Raises:
            UsageError: always.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "policy (openai) returns text without token ids, so its model can only be evaluated "
            "(python -m rl.eval): give policy=local, vllm-server or vllm-engine"
        )

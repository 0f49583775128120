"""``partner=local`` and ``partner=openai``: a model plays roles of an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.policies.openai import OpenAIEndpoint
from rl.policies.partner import PartnerContext, SamplingPartner
from rl.settings.groups import at_least
from rl.settings.models import find_model

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.chat import ChatClient
    from agents.completion import SamplingParams
    from agents.policy import Policy
    from agents.renderer import Renderer

_SHARE = 0.1
"""Share of a GPU's memory for keys and values if ``cache_gb`` is 0."""


@dataclass(frozen=True, slots=True)
class TokenPartner:
    """A partner that samples from a policy with a renderer and a context window of its own."""

    policy: Policy
    renderer: Renderer
    sampling: SamplingParams
    context_length: int
    """The model's context window, in tokens."""

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent for one role of an episode."""
        from agents.agent import TokenAgent

        return TokenAgent(
            self.renderer,
            self.policy,
            self.sampling,
            session=session,
            context_length=self.context_length,
            turn_seed=turn_seed,
        )

    def queued_s(self, session: str) -> float:
        """Seconds that the episode's requests waited for a row."""
        return self.policy.queued_s(session)

    def end(self, session: str) -> None:
        """Release the row of a finished episode."""
        self.policy.end(session)


@dataclass(frozen=True, slots=True)
class ChatPartner:
    """A partner behind a chat API."""

    client: ChatClient
    sampling: SamplingParams

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent that sends messages."""
        from agents.chat import ChatAgent

        return ChatAgent(self.client, self.sampling, session=session, turn_seed=turn_seed)

    def queued_s(self, session: str) -> float:
        """Seconds that the episode's requests waited for a permit."""
        return self.client.queued_s(session)

    def end(self, session: str) -> None:
        """Forget a finished episode."""
        self.client.end(session)


@dataclass(frozen=True, kw_only=True)
class LocalPartner(SamplingPartner):
    """A frozen transformers model in this process."""

    model: str = ""
    """A Hugging Face id, a model's folder, or a run's folder. If empty, the command's own model as
    it is at the start. The model is never trained."""
    context_length: int = 0
    """Maximum number of tokens of the partner's conversation; 0 for the model's own window."""
    cache_gb: float = 0.0
    """GiB for keys and values. 0 means 10% of a GPU's memory; on a CPU it means no maximum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "context_length", "cache_gb")

    def find(self) -> LocalPartner:
        """These settings with the folder of the model."""
        return replace(self, model=find_model(self.model, "partner.model")) if self.model else self

    async def open(self, context: PartnerContext) -> TokenPartner:
        """Load the model and start to sample from it."""
        # Heavy imports come here, so that the command line's help starts quickly.
        import torch

        from agents.local import Limits, LocalPolicy
        from agents.renderer import Renderer
        from rl.learner.local import facts_of
        from rl.learner.model import load_model

        path = self.model or context.model
        if not path or path == "tiny":
            raise UsageError(
                "partner.model is empty, and this command loads no model: give partner.model=FOLDER"
            )
        tokenizer = context.load_tokenizer(path)
        dtype: torch.dtype = getattr(torch, context.dtype)
        model = await asyncio.to_thread(load_model, path, context.device, dtype)
        facts = facts_of(model)
        window = self.context_length or facts.context_window
        cache = int(self.cache_gb * 2**30) or None
        if cache is None and model.device.type == "cuda":
            cache = int(_SHARE * torch.cuda.get_device_properties(model.device).total_memory)
        policy = LocalPolicy(
            model,
            tokenizer,
            max_slots=context.slots,
            seed=context.seed,
            shares_weights=False,
            limits=Limits(
                context_window=window,
                cache_bytes=cache,
                thread=context.thread,
                num_threads=context.num_threads,
                completion_s=context.timeout_s,
            ),
        )
        context.stack.push_async_callback(policy.close)
        context.watch(policy)
        renderer = Renderer(tokenizer, facts.end_token_ids)
        return TokenPartner(policy, renderer, self.sampling, window)


@dataclass(frozen=True, kw_only=True)
class OpenAIPartner(SamplingPartner):
    """A model behind an OpenAI-compatible chat API."""

    url: str = "https://api.openai.com/v1"
    """Root of the API, as in http://host:port/v1."""
    model: str = ""
    """The model's name in the API."""
    key_env: str = ""
    """Name of the environment variable with the API's key; empty if the API needs none."""
    timeout_s: float = 300.0
    """Seconds that one attempt of a request may take."""
    deadline_s: float = 1800.0
    """Seconds that a request may take with its retries."""
    concurrent: int = 32
    """Maximum number of concurrent requests."""
    body: str = ""
    """Further fields of each request, as JSON. A field with null is removed from the request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.endpoint  # Its constructor checks the fields.

    @property
    def endpoint(self) -> OpenAIEndpoint:
        """The settings of the API."""
        return OpenAIEndpoint(
            url=self.url,
            model=self.model,
            key_env=self.key_env,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            concurrent=self.concurrent,
            body=self.body,
        )

    async def open(self, context: PartnerContext) -> ChatPartner:
        """Open the connection to the API."""
        client = await context.stack.enter_async_context(self.endpoint.connect())
        return ChatPartner(client, self.sampling)

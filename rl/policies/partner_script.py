"""``partner=script``: a Python function plays roles of an episode."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure
from rl.errors import UsageError
from rl.policies.partner import PartnerContext, PartnerEngine
from tools.references import is_reference, load_function

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.chat import ChatAnswer

Script = Callable[[Sequence[Mapping[str, Any]], np.random.Generator], str | Awaitable[str]]
"""Maps the role's conversation, in the form of a chat API, and a random generator to a message."""


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A function in the form of a chat model; see :class:`agents.chat.ChatModel`."""

    function: Script
    name: str
    """The function's reference, for messages."""

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]] = (),
        session: str = "",
    ) -> ChatAnswer:
        """The function's message. The seed of ``sampling`` determines its random numbers.

        Raises:
            PolicyFailure: the function raised an error, or returned something else than a text.
        """
        from agents.chat import ChatAnswer

        # The function is foreign code: any exception is a failure of the partner.
        try:
            said = self.function(messages, np.random.default_rng(sampling.seed))
            text: object = await said if inspect.isawaitable(said) else said
        except Exception as error:
            what = f"{self.name} raised {type(error).__name__}: {error}"
            raise PolicyFailure(what, retryable=False) from error
        if not isinstance(text, str):
            what = f"{self.name} returned {type(text).__name__}, expected str"
            raise PolicyFailure(what, retryable=False)
        return ChatAnswer(text, "", (), FinishReason.STOP_TOKEN, None, 0)


@dataclass(frozen=True, slots=True)
class ScriptPartner:
    """A partner that is a function. It has no queue and no resources."""

    model: ScriptedModel

    def new_agent(self, session: str, turn_seed: Callable[[int], int]) -> Agent:
        """An agent that calls the function with its conversation."""
        from agents.chat import ChatAgent

        return ChatAgent(
            self.model, SamplingParams(max_tokens=1), session=session, turn_seed=turn_seed
        )

    def queued_s(self, session: str) -> float:
        """Always 0."""
        return 0.0

    def end(self, session: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class ScriptEngine(PartnerEngine):
    """A Python function of the conversation."""

    supports_deterministic = True

    function: str = ""
    """``path/to/file.py:function`` or ``package.module:function``. It receives the role's messages
    and a ``numpy.random.Generator``, and returns the next message."""

    def check(self) -> None:
        """Check that a function is named.

        Raises:
            ValueError: ``function`` is no reference to a function.
        """
        super().check()
        if not is_reference(self.function):
            raise ValueError(
                f"partner.function ({self.function}) must be path/to/file.py:function or "
                "package.module:function"
            )

    def find(self) -> ScriptEngine:
        """These settings. The function is imported.

        Raises:
            UsageError: there is no such function.
        """
        self._load()
        return self

    async def open(self, context: PartnerContext) -> ScriptPartner:
        """Import the function."""
        return ScriptPartner(ScriptedModel(self._load(), self.function))

    def _load(self) -> Script:
        try:
            function: Script = load_function(self.function, "partner.function")
        except ValueError as error:
            raise UsageError(str(error)) from error
        return function

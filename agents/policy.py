"""The one seam between episodes and whatever generates tokens: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agents.completion import Completion, SamplingParams

if TYPE_CHECKING:
    import torch


class PolicyFailure(RuntimeError):
    """Raised when a policy cannot answer for reasons that are not the episode's.

    Never a reward: the episode is reissued when ``retryable``, else counted as failed.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class Policy(Protocol):
    """Samples completions. ``local``, ``scripted`` and every server speak this and nothing else."""

    @property
    def shares_weights(self) -> bool:
        """Whether it samples from the learner's own tensors: ``load_weights(None, version)``."""
        ...

    @property
    def version(self) -> int:
        """The version of the weights that the next token is sampled from."""
        ...

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes that are about to ask, in the order in which they count.

        A session is one episode's name: a policy may keep its key-value cache from turn to turn.
        """
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``; cancelling the call stops the generation.

        Raises:
            PolicyFailure: no answer for reasons outside the request, a deadline of the policy's
                own among them.
            ValueError: the prompt is empty or longer than the context window.
        """
        ...

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for room to be computed, so far.

        Others took that room: no deadline of the episode counts them.
        """
        ...

    def end(self, session: str) -> None:
        """The episode is over: what was kept for it may go. Unknown sessions are ignored."""
        ...

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Sample from these weights from now on. None: the shared weights changed in place."""
        ...

    def facts(self) -> dict[str, object]:
        """What a run records of its policy, once."""
        ...

    def take_metrics(self) -> dict[str, float]:
        """What the policy counted since the last call."""
        ...

    async def close(self) -> None:
        """Give back what the policy holds; every running call is cancelled."""
        ...


@runtime_checkable
class Observable(Protocol):
    """A policy that says how it gets on; asked from another thread, at any time, for little."""

    def progress(self) -> float:
        """A number that changes whenever a token is read or sampled, or weights get further."""
        ...

    def component_status(self) -> dict[str, str]:
        """What each component does, by name: a thread, a server."""
        ...


Busy = Callable[[str], AbstractContextManager[None]]
"""Counts the seconds of a context as those of a state."""


@runtime_checkable
class Serving(Protocol):
    """A policy whose servers each account for their own time."""

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Have each server's seconds counted from now on.

        Args:
            lane: makes an account by its name, with the states that take the whole of an instant
                before others do, the first of them first.
        """
        ...


@runtime_checkable
class Sleeper(Protocol):
    """A policy that shares a device with the learner, and can leave it to the learner."""

    async def sleep(self) -> None:
        """Give back the device's memory, where that was configured; nothing is asked meanwhile."""
        ...

    async def wake(self) -> None:
        """Take it again."""
        ...

"""The contract of a policy, which samples completions: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agents.completion import Completion, SamplingParams

if TYPE_CHECKING:
    import torch


class PolicyFailure(RuntimeError):
    """Raised when a policy fails for a reason that the episode did not cause.

    A failure is never a reward. If ``retryable``, the episode restarts; otherwise it counts as
    failed.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class Policy(Protocol):
    """Samples completions. Every policy engine implements this protocol."""

    @property
    def shares_weights(self) -> bool:
        """Whether the policy samples from the learner's tensors.

        If so, ``load_weights`` gets None instead of weights.
        """
        ...

    @property
    def version(self) -> int:
        """The version of the weights from which the next token is sampled."""
        ...

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes, in the order of their priority.

        A session is the name of one episode, whose key-value cache a policy can keep between turns.
        """
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``. Cancelling the call stops the generation.

        Raises:
            PolicyFailure: the policy failed for a reason outside the request, such as a missed
                deadline.
            ValueError: the prompt is empty or longer than the context window.
        """
        ...

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a free place, so far.

        The episode's deadlines do not count this time.
        """
        ...

    def end(self, session: str) -> None:
        """Release everything that is kept for a finished episode. Unknown sessions are ignored."""
        ...

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Use these weights for all later tokens.

        ``weights`` is None if the shared weights changed in place.
        """
        ...

    def facts(self) -> dict[str, object]:
        """Properties of the policy, which a run records once."""
        ...

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        ...

    async def close(self) -> None:
        """Free all resources. Running calls fail."""
        ...


@runtime_checkable
class Observable(Protocol):
    """A policy that reports its progress. Other threads may call these methods at any time."""

    def progress(self) -> float:
        """A number that changes with each token and each step of loading weights."""
        ...

    def component_status(self) -> dict[str, str]:
        """What each component, such as a thread or a server, is doing, by the component's name."""
        ...


Busy = Callable[[str], AbstractContextManager[None]]
"""Function that takes a state's name and returns a context manager. Seconds within the context
count as seconds of that state."""


@runtime_checkable
class Serving(Protocol):
    """A policy that counts how its servers spend their time."""

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Count each server's seconds from now on.

        Args:
            lane: called with a server's name and its states, returns a counter of seconds per
                state. While several states are active, only the first of them counts.
        """
        ...


@runtime_checkable
class Sleeper(Protocol):
    """A policy that shares a device with the learner, and can free the device's memory."""

    @property
    def sleeps(self) -> bool:
        """Whether the policy is configured to free its memory while the learner learns."""
        ...

    async def sleep(self) -> None:
        """Free the device's memory, if configured.

        No requests follow until :meth:`wake` and the next :meth:`Policy.load_weights`.
        """
        ...

    async def wake(self) -> None:
        """Take the memory again, at least as much as loading the weights needs."""
        ...

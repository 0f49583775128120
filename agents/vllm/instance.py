"""What a policy needs of a vLLM, wherever it runs: the verbs, and how one is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import aiohttp

from agents.completion import Completion, SamplingParams

if TYPE_CHECKING:
    from agents.vllm.transfer import Snapshot


Handover: TypeAlias = "Path | Snapshot"
"""The weights of a version: the folder in which they lie, or what sends them."""


class Instance(Protocol):
    """A vLLM that runs: a server's, or the one in this process. Every verb has a deadline.

    Verbs raise :class:`~agents.vllm.errors.Unreachable` where it does not answer or is broken, and
    :class:`~agents.vllm.errors.Refused` where the request is wrong.
    """

    @property
    def url(self) -> str:
        """What it is called where something is said of it."""
        ...

    @property
    def path(self) -> str:
        """How it is asked."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens of one sequence."""
        ...

    @property
    def max_num_seqs(self) -> int | None:
        """Requests that it computes at once; None where it does not tell."""
        ...

    @property
    def num_running(self) -> int:
        """Requests that it was sent and has not answered."""
        ...

    async def describe(self) -> None:
        """Learn what it is, once it is there."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        version: int,
        priority: int,
        deadline_s: float,
    ) -> Completion:
        """One completion; of those that wait there the one of the least priority comes first."""
        ...

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """The log-probabilities of a prompt's tokens but the first, and a completion."""
        ...

    async def load(self, given: Handover, version: int) -> None:
        """Sample from the weights that are given, and call them ``version``."""
        ...

    async def num_tokens(self) -> float | None:
        """Tokens that it has read and sampled since it was started; None where it does not say."""
        ...


class Startable(Protocol):
    """A vLLM that this process starts, watches over and ends, with all that belongs to it."""

    @property
    def running(self) -> bool:
        """Whether it is there."""
        ...

    async def start(self) -> None:
        """Start it; it answers some time later.

        Raises:
            ServerGone: it cannot be started.
        """
        ...

    async def ended(self) -> None:
        """Return when it is gone."""
        ...

    def last_words(self) -> str:
        """The last error that it told, in one line."""
        ...

    def instance(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> Instance:
        """What is asked, once it is there; its deadlines in seconds."""
        ...

    async def stop(self) -> None:
        """End it with everything that it started, and remove what it left."""
        ...

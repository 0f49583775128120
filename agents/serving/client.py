"""Contracts of an inference server: its client, its process, and the weights that it loads.

A new engine implements :class:`EngineClient`, and :class:`EngineRunner` if runs start the engine.
Everything else in this package then works with the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import aiohttp

from agents.completion import Completion, SamplingParams
from agents.digests.comparison import LoadedDigests
from agents.serving.errors import Refused, Unreachable

if TYPE_CHECKING:
    import torch

FIRST = -(2**30)
"""Priority of requests that must not wait behind completions."""


class WeightSender(Protocol):
    """One version of the weights in this process's memory, ready to be sent."""

    async def into(self, receiver: Any) -> None:
        """Send the weights to a client of the matching engine.

        Raises:
            Unreachable: the transfer failed or missed its deadline.
            Refused: the engine does not support the transfer.
        """
        ...


PublishedWeights: TypeAlias = Path | WeightSender
"""One version of the weights as servers receive it: a folder of files, or a sender."""


class WeightPublisher(Protocol):
    """Publishes the learner's weights for servers."""

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> PublishedWeights:
        """Publish ``weights``. After the call, the caller may change them.

        Raises:
            UnfitWeights: the weights must not be published.
            OSError: the weights cannot be written.
        """
        ...

    def close(self) -> None:
        """Delete everything that was published."""
        ...


class UnfitWeights(ValueError):
    """Raised for weights that must not be published, such as weights that are not finite."""


class EngineClient(Protocol):
    """A running engine: a server, or an engine in this process. Every method has a deadline.

    Methods raise :class:`~agents.serving.errors.Unreachable` if the engine does not answer or is
    broken, and :class:`~agents.serving.errors.Refused` if the request is wrong.
    """

    @property
    def url(self) -> str:
        """Name used in logs and errors."""
        ...

    @property
    def endpoint(self) -> str:
        """Name of the API that serves requests."""
        ...

    @property
    def reports_versions(self) -> bool:
        """Whether each completion reports the weight version of every token.

        If not, the policy updates weights only while no request runs.
        """
        ...

    @property
    def context_window(self) -> int:
        """Maximum number of tokens in one sequence."""
        ...

    @property
    def max_num_seqs(self) -> int | None:
        """Number of requests that the engine computes at the same time, or None if unknown."""
        ...

    @property
    def num_running(self) -> int:
        """Number of requests that have no response yet."""
        ...

    async def describe(self) -> None:
        """Query the running engine's properties."""
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
        """Sample one completion. Waiting requests with the lowest priority value run first."""
        ...

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """The log-probability of each prompt token except the first, and a sampled completion."""
        ...

    async def load(self, weights: PublishedWeights, version: int) -> LoadedDigests | None:
        """Load ``weights`` and label them ``version``.

        Returns:
            The digests of the engine's parameters, or None if the engine reports no digests.
        """
        ...

    async def num_tokens(self) -> float | None:
        """Number of tokens read and sampled since the start, or None if unknown."""
        ...


@runtime_checkable
class SleepingClient(Protocol):
    """A client of an engine that can free its device's memory, for a learner on the same device.

    The engine wakes in two stages. The cache comes back only after the weights are loaded, because
    loading needs memory.
    """

    async def sleep(self) -> None:
        """Move the weights to the host's memory, and drop all keys and values.

        Running requests wait until the next :meth:`EngineClient.load`.
        """
        ...

    async def wake(self) -> None:
        """Bring back the weights.

        The next :meth:`EngineClient.load` replaces the weights, brings back the cache, and resumes
        the requests.
        """
        ...


MakeClient = Callable[[aiohttp.ClientSession], EngineClient]
"""Makes a client from a process's connections. It can be pickled."""


@runtime_checkable
class CopiedClient(Protocol):
    """A client whose copies in other processes send requests to the same server."""

    def copied(self) -> MakeClient:
        """A function that makes an equal client in another process."""
        ...


def copier(client: EngineClient, connections: str) -> MakeClient:
    """A function that makes an equal client, for :meth:`CopiedClient.copied`.

    Args:
        client: the client, whose attributes can be pickled, except one.
        connections: name of the attribute that holds the connections.
    """
    state = {name: value for name, value in vars(client).items() if name != connections}
    return partial(_copy, type(client), state, connections)


def _copy(
    kind: type[EngineClient],
    state: Mapping[str, Any],
    connections: str,
    session: aiohttp.ClientSession,
) -> EngineClient:
    client = kind.__new__(kind)
    vars(client).update(state, **{connections: session})
    return client


Connect = Callable[..., EngineClient]
"""Function that makes a client, with the arguments of :meth:`EngineRunner.client`."""


class EngineRunner(Protocol):
    """Starts, monitors and stops one engine and all its processes."""

    @property
    def engine(self) -> str:
        """Name used in logs and errors."""
        ...

    @property
    def running(self) -> bool:
        """Whether the engine is alive."""
        ...

    async def start(self) -> None:
        """Start the engine, without waiting until it answers.

        Raises:
            ServerGone: the engine cannot be started.
        """
        ...

    async def ended(self) -> None:
        """Wait until the engine has ended."""
        ...

    def last_words(self) -> str:
        """The engine's last error, in one line."""
        ...

    def client(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> EngineClient:
        """A client of the started engine.

        Args:
            session: HTTP connections for the client.
            short_s: deadline of calls that generate nothing, in seconds.
            load_s: deadline of loading weights.
        """
        ...

    async def stop(self) -> None:
        """Kill the engine's processes, and remove the shared memory that they leave behind."""
        ...


async def wait_until_ready(
    client: EngineClient, within_s: float, *, retry_refused: bool = False, every_s: float = 0.25
) -> None:
    """Wait until the engine answers.

    Args:
        client: the engine's client.
        within_s: deadline in seconds.
        retry_refused: whether to retry after a refusal as well. A proxy may refuse requests while
            the server behind it restarts.
        every_s: seconds between two attempts.

    Raises:
        Unreachable: the engine did not answer before the deadline.
        Refused: the engine refused the request.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while True:
        try:
            return await client.describe()
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and not retry_refused:
                raise
            if loop.time() >= end:
                raise Unreachable(f"{client.url} was not there after {within_s:g} s") from error
        await asyncio.sleep(every_s)

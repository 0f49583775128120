"""Sandbox servers that Ray places: the environment's programs run on the cluster's machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from agents.serving import ServerGone, ServerProcess
from rl.cluster.ray_actors import ServerActor, in_words, result_of
from rl.errors import UsageError
from tools.sandbox.remote.wire import TOKEN_VARIABLE

if TYPE_CHECKING:
    import aiohttp

    from agents.serving import EngineClient

logger = logging.getLogger(__name__)
_CLOSE_S = 10.0
_POLL_S = 0.2
_AGAIN_S = 5.0
"""Seconds between two attempts to start a lost server again."""

Actor = Callable[[type[Any], int, ServerProcess], Any]
"""Starts an actor in the part of the reserved room with a number."""


class SandboxProcess(ServerProcess):
    """``python -m tools.sandbox serve``, which this process starts and ends.

    Args:
        token: the token that clients must send.
    """

    engine = "sandbox"

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token
        self.keeps_port = True

    def command(self) -> list[str]:
        """The command line of the server."""
        listen = ["--host", self.host, "--port", str(self.port)]
        return [sys.executable, "-m", "tools.sandbox", "serve", *listen]

    def variables(self) -> Mapping[str, str]:
        """The token, and where this process finds its modules."""
        paths = os.pathsep.join(path for path in sys.path if path)
        return {TOKEN_VARIABLE: self._token, "PYTHONPATH": paths}

    def explain(self, error: str) -> str | None:
        """The server's output is not kept."""
        return "`python -m tools.sandbox doctor`, on its machine, says why"

    def client(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> EngineClient:
        """A sandbox has another client: :func:`tools.sandbox.make_sandbox`."""
        raise NotImplementedError


@asynccontextmanager
async def sandboxes_on(actor: Actor, bundles: Sequence[int], start_s: float) -> AsyncIterator[str]:
    """Start a sandbox server in each bundle, until the context ends.

    A server that ends is started again. In the context, the environment of this process has the
    token of the servers, which the client sends.

    Args:
        actor: starts actors.
        bundles: numbers of the parts of the reserved room.
        start_s: seconds that a server may take to start.

    Returns:
        The servers' URLs, separated by commas; empty without servers.

    Raises:
        UsageError: a server does not start.
    """
    token = secrets.token_urlsafe()
    servers = [_Sandbox(actor, bundle, SandboxProcess(token), start_s) for bundle in bundles]
    before = os.environ.get(TOKEN_VARIABLE)
    keeping: list[asyncio.Task[None]] = []
    try:
        starting = (server.start() for server in servers)
        for failure in await asyncio.gather(*starting, return_exceptions=True):
            if failure is not None:
                raise failure
        if servers:
            os.environ[TOKEN_VARIABLE] = token
        keeping = [asyncio.create_task(server.keep()) for server in servers]
        yield ",".join(server.url for server in servers)
    finally:
        for task in keeping:
            task.cancel()
        if servers and before is None:
            os.environ.pop(TOKEN_VARIABLE, None)
        elif before is not None:
            os.environ[TOKEN_VARIABLE] = before
        await asyncio.gather(*(server.stop() for server in servers))


class _Sandbox:
    """One server, in an actor."""

    def __init__(self, actor: Actor, bundle: int, process: SandboxProcess, start_s: float) -> None:
        self._make = actor
        self._bundle = bundle
        self._process = process
        self._start_s = start_s
        self._actor: Any = None
        self._ended: asyncio.Future[str] | None = None
        """The last words of the server, when it has ended."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._process.url

    async def start(self) -> None:
        """Start the actor and the server, and wait until it listens.

        Raises:
            UsageError: it does not.
        """
        self._actor = self._make(ServerActor, self._bundle, self._process)
        try:
            async with asyncio.timeout(self._start_s):
                place = await result_of(self._actor.start.remote())
                self._process.host, self._process.port = place
                self._ended = asyncio.ensure_future(result_of(self._actor.ended.remote()))
                while not await _listens(*place):
                    await asyncio.wait({self._ended}, timeout=_POLL_S)
                    if self._ended.done():
                        raise ServerGone(f"it ended: {self._ended.result()}")
        except (RayError, ServerGone, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            why = f"within {self._start_s:g} s" if late else in_words(error)
            await self.stop()
            raise UsageError(f"a sandbox server of the cluster does not start: {why}") from error

    async def keep(self) -> None:
        """Start the server again whenever it has ended, until cancelled."""
        while True:
            before = self.url
            assert self._ended is not None, "it was started"
            with contextlib.suppress(RayError):
                await self._ended
            await self.stop()
            while self._actor is None:
                try:
                    await self.start()
                except UsageError as error:
                    logger.warning("%s; the run uses the others", error)
                    await asyncio.sleep(_AGAIN_S)
            if self.url == before:
                logger.warning("the sandbox server at %s has ended and was started again", before)
            else:
                logger.warning(
                    "the sandbox server at %s has ended, and Ray gave it another machine, where "
                    "this run does not use it",
                    before,
                )

    async def stop(self) -> None:
        """End the server and its actor."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(result_of(actor.stop.remote()), _CLOSE_S)
        ray.kill(actor)
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_CLOSE_S)
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # That the actor was killed is known.


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True

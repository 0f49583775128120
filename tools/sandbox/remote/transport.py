"""Sends a client's requests to one server, with permits and retries.

Counts retries and failures.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable

import aiohttp
from yarl import URL

from tools.owner import current_owner
from tools.sandbox.errors import SandboxBusy, SandboxFailure
from tools.sandbox.host.queue import FairQueue
from tools.sandbox.host.reading import Clock, Reader
from tools.sandbox.remote import wire
from tools.sandbox.remote.connection import Connection, ConnectionLost
from tools.sandbox.remote.server_info import CONNECT_S

_HEARTBEAT_S = 15.0
_RETRY_S = 1.0
_PERMITS_PER_WORKER = 4
"""Number of concurrent requests per worker of the server. With several, no worker waits for its
next request."""


class Transport:
    """Sends requests to a server by HTTP, and messages about sessions by one WebSocket.

    Args:
        url: URL of the server.
        token: token of the server, or None to send none.
        patience_s: seconds that a request can wait on the server, in addition to its programs' time
            limits.
    """

    def __init__(self, url: URL, token: str | None, patience_s: float) -> None:
        self.url = url
        self.permits = FairQueue(1)
        """One permit for each concurrent request. ``set_workers`` sets the number of permits."""
        self.failures = 0
        self.retries = 0
        self._token = token
        self._patience_s = patience_s
        self._name = uuid.uuid4().hex
        self._rng = random.Random(self._name)
        self._http: aiohttp.ClientSession | None = None
        self._ready = False
        self._reader = Reader()
        self._connection: Connection | None = None
        self._connection_lock = asyncio.Lock()

    @property
    def http(self) -> aiohttp.ClientSession:
        """The open HTTP session.

        Raises:
            RuntimeError: the sandbox is not started, or is closed.
        """
        if self._http is None:
            state = "closed" if self._ready else "not started: use `async with`"
            raise RuntimeError(f"the sandbox is {state}")
        return self._http

    def open(self) -> None:
        """Open the HTTP session.

        Raises:
            RuntimeError: this sandbox was started before.
        """
        if self._http is not None:
            raise RuntimeError("this sandbox was started before: make a new one")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._http = aiohttp.ClientSession(
            self.url,
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    def set_workers(self, workers: int) -> None:
        """Set the number of permits, which is a multiple of the server's number of workers."""
        self.permits = FairQueue(_PERMITS_PER_WORKER * workers)
        self._ready = True

    async def close(self) -> None:
        """Close all connections, so that the server ends this client's runs and sessions."""
        http, self._http = self._http, None
        if self._connection is not None:
            await self._connection.close()
        if http is not None:
            await http.close()
        self._reader.close()

    @property
    def owner(self) -> str:
        """Identifier of the current owner (see ``tools.owner``). It is unique among all clients."""
        return f"{self._name}/{hash(current_owner()):x}"

    def failure(self, message: str) -> SandboxFailure:
        """Count a failure of the server or connection, and make the exception to raise for it."""
        self.failures += 1
        return SandboxFailure(f"{self.url}: {message}")

    async def retry_while_busy(
        self, attempt: Callable[[], Awaitable[wire.Data]], wait_s: float
    ) -> wire.Data:
        """Repeat ``attempt`` while the server is full, and return its answer.

        Raises:
            SandboxBusy: the server was full until the deadline.
            SandboxFailure: there was no answer before the deadline.
        """
        busy: SandboxBusy | None = None
        try:
            async with asyncio.timeout(self._patience_s + wait_s):
                while True:
                    try:
                        return await attempt()
                    except SandboxBusy as error:
                        busy = error
                    await asyncio.sleep(_RETRY_S * (0.5 + self._rng.random()))
        except TimeoutError:
            if busy is not None:
                self.failures += 1
                raise SandboxBusy(f"{self.url} had no room: {busy}") from None
            raise self.failure(f"no answer within {self._patience_s + wait_s:g} s") from None

    async def connection(self) -> Connection:
        """The open connection for sessions. Opens a connection if there is none or it was lost.

        Raises:
            ConnectionLost: the server cannot be reached.
            SandboxBusy: this machine has too many connections to the server.
        """
        async with self._connection_lock:
            if self._connection is None or self._connection.closed:
                if self._connection is not None:
                    await self._connection.close()
                try:
                    async with asyncio.timeout(CONNECT_S):
                        socket = await self.http.ws_connect(
                            "/sessions", heartbeat=_HEARTBEAT_S, max_msg_size=0
                        )
                except (aiohttp.ClientError, OSError) as error:
                    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 429:
                        raise self._too_many_connections() from None
                    raise ConnectionLost from None
                self._connection = Connection(socket)
            return self._connection

    def _too_many_connections(self) -> SandboxBusy:
        self.failures += 1
        return SandboxBusy(
            f"{self.url} allows this machine no further connection for sessions: share one sandbox "
            "among the sessions of a process, or start the server with a higher "
            "--max-client-sessions"
        )

    async def ask(
        self, connection: Connection, message: wire.Data, wait_s: float = 0.0
    ) -> wire.Data:
        """Send a message about a session, repeatedly while the server is full. Returns the answer.

        Raises:
            ConnectionLost: the connection has ended.
            SandboxFailure: there was no answer in time, or the server's sandbox failed.
            SessionOver: the session or snapshot has ended.
        """
        owned = {**message, "owner": self.owner}

        async def attempt() -> wire.Data:
            answer = await connection.ask(owned)
            if "error" in answer:
                raise wire.read_error(answer)
            return answer

        return await self.retry_while_busy(attempt, wait_s)

    async def post(self, path: str, message: wire.Data, wait_s: float) -> wire.Data:
        """Send a request and return the answer. Retries once after a lost connection.

        Raises:
            SandboxFailure: there was no answer in time, the connection was lost twice, or the
                server failed.
        """
        http, body, owner = self.http, wire.pack(message), self.owner
        lost = False

        async def attempt() -> wire.Data:
            nonlocal lost
            while True:
                try:
                    async with http.post(
                        path,
                        data=body,
                        headers={wire.OWNER: owner, "Content-Type": "application/json"},
                        allow_redirects=False,
                    ) as response:
                        return await self._answer(response)
                except (aiohttp.ClientError, OSError) as error:
                    if lost or self._http is None:
                        raise self.failure(f"{type(error).__name__}: {error}") from None
                lost = True
                self.retries += 1
                await asyncio.sleep(_RETRY_S)
                if self._http is None:
                    raise self.failure("closed during a request")

        async with self.permits:
            return await self.retry_while_busy(attempt, wait_s)

    async def _answer(self, response: aiohttp.ClientResponse) -> wire.Data:
        if response.content_type != "application/json":
            raise self.failure(f"{response.status} {response.reason}")
        try:
            body = await response.read()
            data = await self._reader.read(len(body), lambda: wire.unpack(body), Clock())
        except wire.WireError as error:
            raise self.failure(str(error)) from None
        if response.status != 200:
            raise wire.read_error(data)
        return data

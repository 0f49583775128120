"""A web application that serves a sandbox: runs and grades by POST, sessions by WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict

from aiohttp import WSCloseCode, WSMsgType, web

from tools.owner import acting_for
from tools.sandbox.errors import SandboxBusy, SandboxFailure
from tools.sandbox.host.reading import Clock
from tools.sandbox.remote import wire
from tools.sandbox.remote.admission import (
    RETRY_AFTER_S,
    Admission,
    ClientShare,
    three_quarters,
)
from tools.sandbox.remote.hosted import HostedSessions
from tools.sandbox.sandbox import Sandbox

_HEADERS_S = 30.0
"""Seconds within which a new connection must send a request."""
_BODY_S = 60.0
"""Seconds within which the body of a request must arrive."""
_ANSWER_S = 60.0
_SLOWEST = 1 << 20
"""Minimum rate, in bytes per second, at which a client must read an answer after ``_ANSWER_S``
seconds."""
_HEARTBEAT_S = 15.0
"""Seconds between heartbeats of a client with sessions."""

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one running sandbox to clients that have the token.

    Args:
        sandbox: a running sandbox.
        token: token that each request must send, or None if requests need no token.
        max_waiting: maximum number of waiting requests. Further requests are answered with 429.
        max_client_sessions: maximum number of sessions, copies and snapshots that one address can
            have open, or None for three quarters of the sandbox's ``max_sessions``.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        token: str | None,
        max_waiting: int,
        max_client_sessions: int | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._token = token
        if max_waiting < 1:
            raise ValueError(f"max_waiting ({max_waiting}) must be >= 1")
        sessions = sandbox.executor.max_sessions
        if max_client_sessions is None:
            max_client_sessions = three_quarters(sessions)
        if not 1 <= max_client_sessions <= sessions:
            raise ValueError(
                f"max_client_sessions ({max_client_sessions}) must be in [1, {sessions}]: raise "
                "max_sessions, the maximum of all clients, to allow more"
            )
        self._max_client_sessions = max_client_sessions
        self._shares: weakref.WeakValueDictionary[str, ClientShare] = weakref.WeakValueDictionary()
        """The share of each client that has requests, connections or sessions, by the client's
        address."""
        self._max_requests = max_waiting + sandbox.workers
        self._admission = Admission(self._max_requests)
        self._active: set[object] = set()
        """Connections that have sent a request."""
        self._clients: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()
        self._closing: set[asyncio.Task[None]] = set()
        self.broken = asyncio.Event()
        """Event that is set when the sandbox cannot be used any more."""

    def application(self) -> web.Application:
        """The aiohttp application.

        Run it so that aiohttp cancels a handler when its client disconnects.
        """
        application = web.Application(middlewares=[self._guard], client_max_size=wire.MAX_BODY)
        application.add_routes(
            [
                web.get("/sandbox", self._info),
                web.get("/health", self._health),
                web.post("/run", self._run),
                web.post("/grade", self._grade),
                web.get("/sessions", self._sessions),
            ]
        )
        application.on_shutdown.append(self._close_clients)
        application.on_cleanup.append(self._await_closing)
        return application

    async def watch(self, connections: Callable[[], Sequence[web.RequestHandler]]) -> None:
        """Close connections that send no request, until cancelled.

        Any machine can open such a connection without a token.

        Args:
            connections: function that lists the open connections.
        """
        since: dict[web.RequestHandler, float] = {}
        while True:
            await asyncio.sleep(_HEADERS_S / 4)
            now = time.monotonic()
            since = {one: since.get(one, now) for one in connections()}
            self._active &= since.keys()
            for one, first_seen in since.items():
                if one not in self._active and now - first_seen >= _HEADERS_S:
                    one.force_close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check a request's token, and convert errors of its handler to answers."""
        self._active.add(request.protocol)
        if "Origin" in request.headers:  # the request comes from a web page
            raise web.HTTPForbidden(text="not for browsers")
        if self._token is not None:
            self._check_token(request.headers.get("Authorization"), self._token)
        try:
            response = await handler(request)
        except wire.KNOWN_ERRORS as error:
            if isinstance(error, SandboxFailure) and not error.retryable:
                self.broken.set()
            status, data = wire.write_error(error)
            busy = isinstance(error, SandboxBusy)
            headers = {"Retry-After": str(RETRY_AFTER_S)} if busy else {}
            return _reply(data, status, headers)
        if isinstance(response, web.Response):
            async with self._sending(request, response.content_length or 0):
                await response.prepare(request)
                await response.write_eof()
        return response

    def _check_token(self, given: str | None, token: str) -> None:
        challenge = {"WWW-Authenticate": "Bearer"}
        if given is None:
            text = "a token is needed: Authorization: Bearer <token>"
            raise web.HTTPUnauthorized(headers=challenge, text=text)
        theirs = given.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(theirs, f"Bearer {token}".encode()):
            raise web.HTTPUnauthorized(headers=challenge, text="the token is wrong")

    @contextlib.asynccontextmanager
    async def _sending(self, request: web.Request, size: int) -> AsyncIterator[None]:
        """Reserve memory while an answer is sent. Disconnect a client that reads too slowly."""
        with self._share(request).hold(size):
            try:
                async with asyncio.timeout(_ANSWER_S + size / _SLOWEST):
                    yield
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()

    async def _info(self, request: web.Request) -> web.StreamResponse:
        sandbox = self._sandbox
        return _reply(
            {
                "version": wire.VERSION,
                "backend": sandbox.backend,
                "isolation": sandbox.isolation,
                "limits_enforced_by": sandbox.limits_enforced_by,
                "lost": sandbox.lost,
                "limits": wire.fields_of(sandbox.limits),
                "workers": sandbox.workers,
            }
        )

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(asdict(await self._sandbox.health()))

    async def _run(self, request: web.Request) -> web.StreamResponse:
        with self._share(request).take(_size(request)), acting_for(_owner(request)):
            match await self._message(request):
                case {
                    "source": str(source),
                    "stdin": str(stdin),
                    "files": dict(files),
                    "limits": dict(limits),
                    "collect": list(patterns),
                }:
                    result = await self._sandbox.run(
                        source,
                        stdin,
                        wire.read_files(files),
                        wire.read_requested_limits(limits),
                        collect=wire.read_patterns(patterns),
                    )
                    return _reply(wire.fields_of(result))
            raise wire.WireError("a run has a source, stdin, files, limits and collect")

    async def _grade(self, request: web.Request) -> web.StreamResponse:
        with self._share(request).take(_size(request)), acting_for(_owner(request)):
            match await self._message(request):
                case {
                    "source": str(source),
                    "tests": list(tests),
                    "entry_point": None | str() as entry_point,
                    "limits": dict(limits),
                    "stop_at_first_failure": bool(stop),
                    "fresh_process": bool(fresh),
                }:
                    verdict = await self._sandbox.grade(
                        source,
                        wire.read_tests(tests),
                        entry_point,
                        limits=wire.read_requested_limits(limits),
                        stop_at_first_failure=stop,
                        fresh_process=fresh,
                    )
                    return await self._reply_in_thread(lambda: wire.write_verdict(verdict))
            raise wire.WireError(
                "a grade has a source, tests, entry_point, limits, a stop and a fresh_process"
            )

    async def _message(self, request: web.Request) -> wire.Data:
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        return await self._sandbox.executor.reader.read(
            len(body), lambda: wire.unpack(body), Clock()
        )

    async def _reply_in_thread(self, make: Callable[[], wire.Data]) -> web.StreamResponse:
        """Make an answer in a thread, so that other clients continue while it is encoded."""
        return await self._sandbox.executor.reader.read(
            wire.MAX_BODY, lambda: _reply(make()), Clock()
        )

    async def _sessions(self, request: web.Request) -> web.StreamResponse:
        share = self._share(request)
        with share.connected():
            return await self._serve_sessions(request, share)

    def _share(self, request: web.Request) -> ClientShare:
        """The share of the request's client.

        It exists as long as any request or connection uses it.
        """
        address = f"{request.remote}"
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = ClientShare(
                three_quarters(self._max_requests),
                self._max_client_sessions,
                self._admission,
                self._sandbox.executor.session_permits,
            )
        return share

    async def _serve_sessions(self, request: web.Request, share: ClientShare) -> web.StreamResponse:
        client = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, max_msg_size=wire.MAX_BODY)
        await client.prepare(request)
        self._clients.add(client)

        async def send(answer: bytes) -> None:
            async with self._sending(request, len(answer)):
                await client.send_bytes(answer)

        hosted = HostedSessions(self._sandbox, share, send)
        try:
            async for message in client:
                if message.type is not WSMsgType.BINARY:
                    break
                await hosted.handle(message.data)
        except wire.WireError as error:
            await client.close(code=WSCloseCode.UNSUPPORTED_DATA, message=str(error)[:100].encode())
        finally:
            # In a separate task, because this one is cancelled when the connection ends.
            closing = asyncio.create_task(hosted.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)
        return client

    async def _close_clients(self, application: web.Application) -> None:
        """Close the connections of clients with sessions."""
        for client in set(self._clients):
            await client.close(code=WSCloseCode.GOING_AWAY, message=b"the server ends")

    async def _await_closing(self, application: web.Application) -> None:
        """Wait until the sessions of all clients are closed."""
        await asyncio.gather(*self._closing)


def _reply(
    data: wire.Data, status: int = 200, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    return web.Response(
        body=wire.pack(data), status=status, headers=headers, content_type="application/json"
    )


def _size(request: web.Request) -> int:
    """The declared length of a request. The reader of the request enforces it.

    Raises:
        HTTPLengthRequired: the request declares no length.
        HTTPUnsupportedMediaType: the request is compressed, so that its size is unknown.
        ValueError: the request is too large.
    """
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="send the body as it is, without Content-Encoding")
    if request.content_length is None:
        raise web.HTTPLengthRequired
    if request.content_length > wire.MAX_BODY:
        raise ValueError(
            f"a request of {request.content_length} bytes is too large: a server takes "
            f"{wire.MAX_BODY}"
        )
    return request.content_length


def _owner(request: web.Request) -> str:
    owner = request.headers.get(wire.OWNER)
    return owner if owner is not None else f"{request.remote}"

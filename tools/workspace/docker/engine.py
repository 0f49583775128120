"""An asynchronous client of this machine's Docker engine, in which every call has a deadline."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from tools.sandbox import SandboxUnavailable
from tools.sandbox.backends.docker import container
from tools.sandbox.backends.docker import engine as local_engine
from tools.workspace.errors import WorkspaceFailure

CALL_S = 60.0
"""Time limit in seconds of a call of the engine. A busy machine starts 64 containers in less."""
_MAX_MESSAGE = 500
"""Maximum number of characters of an engine's error message that an exception repeats."""
_UNIX = "unix://"


class EngineError(WorkspaceFailure):
    """Raised when the engine refuses a call."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retryable=status >= 500)
        self.status = status
        """HTTP status of the engine's answer."""


class Engine:
    """A connection to the engine at ``DOCKER_HOST``, or at the default socket.

    Use it as an asynchronous context. The start removes containers of processes that have died.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self.owner = container.owner(os.getpid())
        """Identifier of this process, which labels its containers."""

    async def __aenter__(self) -> Engine:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and remove containers of dead processes.

        Raises:
            WorkspaceFailure: there is no engine, or it does not answer.
        """
        try:
            await asyncio.to_thread(_sweep)
        except SandboxUnavailable as error:
            raise WorkspaceFailure(str(error), retryable=False) from error
        connector = aiohttp.UnixConnector(local_engine.url().removeprefix(_UNIX), limit=0)
        # Each call sets its own deadline.
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)

    async def close(self) -> None:
        """Close the connection. Containers keep running."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        wall_s: float = CALL_S,
    ) -> Any:
        """Call the engine and return its JSON answer, or None if the answer is empty.

        Raises:
            EngineError: the engine refuses.
            WorkspaceFailure: the engine does not answer within ``wall_s`` seconds.
        """
        async with self.request(method, path, params=params, body=body, wall_s=wall_s) as answer:
            text = await answer.read()
        return json.loads(text) if text.strip() else None

    async def get_bytes(
        self, path: str, params: Mapping[str, str], max_bytes: int, wall_s: float = CALL_S
    ) -> bytes:
        """The bytes of an answer.

        Raises:
            ValueError: the answer has more than ``max_bytes``.
        """
        parts, size = [], 0
        async with self.request("GET", path, params=params, wall_s=wall_s) as answer:
            async for part in answer.content.iter_any():
                size += len(part)
                if size > max_bytes:
                    raise ValueError(f"more than {max_bytes} bytes")
                parts.append(part)
        return b"".join(parts)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        wall_s: float = CALL_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of a call, whose content the caller reads within ``wall_s`` seconds.

        Args:
            method: HTTP method.
            path: path of the API, such as ``/containers/create``.
            params: parameters in the address.
            body: bytes, sent as a tar archive; anything else is sent as JSON.
            wall_s: time limit in seconds, including the reading of the content.
        """
        if self._session is None:
            raise WorkspaceFailure("docker: the client is not open", retryable=False)
        raw = isinstance(body, bytes)
        content: dict[str, Any] = {"data": body} if raw else {"json": body}
        headers = {"Content-Type": "application/x-tar"} if raw else None
        address = f"http://docker{path}"
        try:
            async with (
                asyncio.timeout(wall_s),
                self._session.request(
                    method, address, params=params, headers=headers, **content
                ) as answer,
            ):
                if answer.status >= 400:
                    raise EngineError(f"docker: {await _message(answer)}", answer.status)
                try:
                    yield answer
                finally:
                    if not answer.content.at_eof():
                        answer.close()
        except TimeoutError as error:
            raise WorkspaceFailure(f"docker: no answer within {wall_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise WorkspaceFailure(f"docker: the engine stopped answering: {error}") from error


async def _message(answer: aiohttp.ClientResponse) -> str:
    text = await answer.text(errors="replace")
    with suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(text)["message"])
    return " ".join(text.split())[:_MAX_MESSAGE]


def _sweep() -> None:
    client = local_engine.connect()
    try:
        container.sweep(client)
    finally:
        client.close()

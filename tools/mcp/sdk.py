"""Wraps the SDK ``mcp`` and hides the differences between its versions 1 and 2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TextIO

try:
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client import streamable_http
    from mcp.client.stdio import stdio_client
    from mcp.types import PaginatedRequestParams
except ImportError as error:
    raise ImportError("MCP servers need the SDK: pip install 'turnwise[mcp]'") from error

try:
    from mcp import MCPError as ProtocolError
except ImportError:  # Version 1.
    from mcp import McpError as ProtocolError

__all__ = ["STREAM_CLOSED", "PaginatedRequestParams", "ProtocolError", "over_http", "over_stdio"]

STREAM_CLOSED = (anyio.ClosedResourceError, anyio.BrokenResourceError)
"""Exceptions that a request raises if the connection has ended."""


@asynccontextmanager
async def over_stdio(
    command: list[str], env: Mapping[str, str], errors: TextIO
) -> AsyncIterator[ClientSession]:
    """Start a server and open a session with it. The caller does the handshake.

    Args:
        command: program and arguments.
        env: environment variables, in addition to those that every server gets.
        errors: an open file that becomes the server's standard error.
    """
    started = StdioServerParameters(command=command[0], args=command[1:], env=dict(env))
    async with (
        stdio_client(started, errlog=errors) as (read, write),
        ClientSession(read, write) as session,
    ):
        yield session


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[ClientSession]:
    """Open a session with a server at a URL. The caller does the handshake."""
    async with (
        streamable_http.create_mcp_http_client(headers=dict(headers)) as client,
        streamable_http.streamable_http_client(url, http_client=client) as streams,
        # Version 1 has a third stream, which reports the session's id.
        ClientSession(streams[0], streams[1]) as session,
    ):
        yield session


def plain(answer: Any) -> dict[str, Any]:
    """A response as the protocol's JSON, which does not depend on the SDK's version."""
    wire: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return wire

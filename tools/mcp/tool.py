"""A tool of an MCP server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from tools.limits import CallLimits, LimitedCalls
from tools.mcp.connection import Address
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult

MAX_DEPTH = 64
"""Maximum nesting depth of arguments. The SDK can send up to about 250 levels."""
NO_OUTPUT = "(no output)"


class ToolServer(Protocol):
    """The part of ``tools.mcp.server.McpServer`` that :class:`McpTool` uses."""

    address: Address
    limits: CallLimits
    per_episode: bool
    """Whether each episode has its own connection."""

    async def open(self) -> Any:
        """Connect."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Any], session: str
    ) -> Mapping[str, Any]:
        """Call ``tool`` for the episode ``session`` and return the result of ``tools/call``."""
        ...

    def keeps(self, session: str) -> bool:
        """Whether the episode has its own connection."""
        ...

    async def end(self, session: str) -> None:
        """Close the episode's own connection."""
        ...


class McpTool(Tool):
    """A tool of an MCP server. The server defines its name, description and JSON Schema.

    A result with ``isError``, for example because of invalid arguments, counts as a mistake of the
    agent, which reads the result's text.

    Args:
        server: the server that executes calls.
        listed: the tool's entry in the result of ``tools/list``.
        own_server: whether the tool opens and closes the server.
    """

    def __init__(
        self, server: ToolServer, listed: Mapping[str, Any], *, own_server: bool = False
    ) -> None:
        self.name = str(listed["name"])
        self.description = str(listed.get("description") or listed.get("title") or self.name)
        self.parameters = dict(listed["inputSchema"])
        self.stateful = server.per_episode
        self.forkable = not server.per_episode
        self._server = server
        self._own_server = own_server
        self._calls = LimitedCalls(f"tool {self.name!r}", server.limits)

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Call the tool on the server; see :class:`tools.Tool`."""
        context = context or ToolContext()
        wrong = _unsendable(arguments)
        if wrong is not None:
            return ToolResult(f"Error: {self.name}: {wrong}", error=wrong)
        call = partial(self._server.call, self.name, arguments, context.session)
        answer, retries = await self._calls.run_counted(call, context.timeout_s)
        return replace(result_of(answer), retries=retries)

    async def open(self) -> None:
        """Connect, if the tool owns the server.

        Raises:
            ToolFailure: the server does not start, or does not answer in time.
        """
        if self._own_server:
            await self._server.open()

    async def close(self) -> None:
        """Disconnect, if the tool owns the server. This ends a server that a command started."""
        if self._own_server:
            await self._server.close()

    async def fork(self, session: str, twin: str) -> None:
        """Do nothing if episodes share the connection.

        Raises:
            ToolFailure: the episode has its own connection, which cannot be copied.
        """
        if self._server.keeps(session):
            raise ToolFailure(
                f"{self._server.address} cannot copy an episode's state", retryable=False
            )

    async def end(self, session: str) -> None:
        """End the episode's own connection, if it has one."""
        await self._server.end(session)


def _unsendable(arguments: Mapping[str, Any]) -> str | None:
    r"""Why sending the arguments would break the connection, or None if they can be sent.

    JSON escapes can write half of a character (``"\ud800"``), which UTF-8 cannot encode.
    """
    if not _within(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} deep"
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the arguments hold half of a character: a surrogate without the other"
    return None


def _within(value: object, depth: int) -> bool:
    """Whether a JSON value has at most ``depth`` levels of nesting."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return True
    return depth > 0 and all(_within(one, depth - 1) for one in value)


def result_of(answer: Mapping[str, Any]) -> ToolResult:
    """Convert the result of ``tools/call`` to a ``ToolResult``.

    ``data`` is the structured content if there is any, otherwise the list of content blocks.
    """
    blocks = answer.get("content", [])
    structured = answer.get("structuredContent")
    text = "\n".join(filter(None, map(_text, blocks)))
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    error = text or "the call failed" if answer.get("isError") else None
    data = blocks if structured is None else structured
    return ToolResult(text or error or NO_OUTPUT, data=data, error=error)


def _text(block: Mapping[str, Any]) -> str:
    """A content block as text.

    Content other than text appears as its kind, such as "[image: ...]".
    """
    match block["type"]:
        case "text":
            return str(block["text"])
        case "image" | "audio":
            return f"[{block['type']}: {block['mimeType']}]"
        case "resource":
            resource = block["resource"]
            return str(resource.get("text") or f"[resource: {resource['uri']}]")
        case "resource_link":
            return f"[resource: {block['uri']}]"
    return f"[{block['type']}]"

"""One tool of an MCP server as one of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tools.limits import LimitedCalls
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult

if TYPE_CHECKING:
    from tools.mcp.server import McpServer

DEEPEST = 64
"""Objects and lists inside one another, of arguments; the SDK sends some 250."""
NOTHING_SAID = "(no output)"


class McpTool(Tool):
    """A tool of a server; its name, description and JSON Schema are the server's own.

    What the server answers with ``isError``, a refusal of the arguments for example, is a mistake
    of the agent's, and it reads so.

    Args:
        server: asked at each call.
        listed: how ``tools/list`` describes it.
        own_server: whether ``open`` and ``close`` are the server's, because nobody else has it.
    """

    def __init__(
        self, server: McpServer, listed: Mapping[str, Any], *, own_server: bool = False
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
        """Ask the server; see :class:`tools.Tool`."""
        context = context or ToolContext()
        wrong = _unsendable(arguments)
        if wrong is not None:
            return ToolResult(f"Error: {self.name}: {wrong}", error=wrong)
        call = partial(self._server.call, self.name, arguments, context.session)
        return result_of(await self._calls.run(call, context.timeout_s))

    async def open(self) -> None:
        """Connect, where the server is the tool's own.

        Raises:
            ToolFailure: the server does not start, or does not answer in time.
        """
        if self._own_server:
            await self._server.open()

    async def close(self) -> None:
        """Disconnect, where the server is the tool's own; what a command started ends."""
        if self._own_server:
            await self._server.close()

    async def fork(self, session: str, twin: str) -> None:
        """Nothing to do where episodes share the server.

        Raises:
            ToolFailure: the episode has a server of its own, which cannot be copied.
        """
        if self._server.keeps(session):
            raise ToolFailure(
                f"{self._server.address} cannot copy what it keeps of an episode", retryable=False
            )

    async def end(self, session: str) -> None:
        """The episode is over: end its connection, where it has one of its own."""
        await self._server.end(session)


def _unsendable(arguments: Mapping[str, Any]) -> str | None:
    r"""Why arguments cannot be sent: that would end a connection that others share. None: they can.

    JSON escapes can write half of a character (``"\ud800"``), which no encoding holds.
    """
    if not _within(arguments, DEEPEST):
        return f"the arguments are nested more than {DEEPEST} deep"
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the arguments hold half of a character: a surrogate without the other"
    return None


def _within(value: object, depth: int) -> bool:
    """Whether a plain value is nested at most so deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return True
    return depth > 0 and all(_within(one, depth - 1) for one in value)


def result_of(answer: Mapping[str, Any]) -> ToolResult:
    """What ``tools/call`` answered, as text for a model.

    Its data is the structured content where there is some, else the list of content blocks.
    """
    blocks = answer.get("content", [])
    structured = answer.get("structuredContent")
    text = "\n".join(filter(None, map(_text, blocks)))
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    error = text or "the call failed" if answer.get("isError") else None
    data = blocks if structured is None else structured
    return ToolResult(text or error or NOTHING_SAID, data=data, error=error)


def _text(block: Mapping[str, Any]) -> str:
    """A content block in words: no model here sees pictures."""
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

"""``tools.make("mcp", ...)``: makes one tool of an MCP server, from plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tools.mcp.connection import Address
from tools.mcp.server import McpServer
from tools.mcp.tool import McpTool
from tools.registry import closest


def mcp_tool(
    tool: str = "",
    command: str = "",
    url: str = "",
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    max_sessions: int = 0,
    timeout_s: float = 60.0,
    retries: int = 0,
) -> McpTool:
    """Make one tool of an MCP server. Either a command starts the server, or it listens at a URL.

    This call connects once to list the server's tools. ``open`` connects for the calls, and
    ``close`` disconnects.

    Args:
        tool: the tool's name, or "" if the server has only one tool.
        command: program and arguments, as a shell reads them, such as "python server.py --fast".
        url: URL of a streamable HTTP server.
        env: environment variables for the command, in addition to HOME, PATH and a few harmless
            ones.
        headers: headers of each request to the URL.
        max_sessions: see :class:`McpServer`.
        timeout_s: time limit in seconds for one call, and for the server's start.
        retries: maximum number of further attempts after a timeout or the server's exit.

    Raises:
        ValueError: the address, a number or the tool's name is wrong.
        ToolFailure: the server does not start, or does not answer in time.
    """
    address = Address(command=command, url=url, env=env or {}, headers=headers or {})
    server = McpServer(address, max_sessions=max_sessions, timeout_s=timeout_s, retries=retries)
    # In a thread, because this thread may run a loop already.
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, server.list_tools()).result()
    if not tool and len(server.listed) == 1:
        [tool] = server.listed
    if tool not in server.listed:
        hint = closest(tool, server.listed) if tool else None
        meant = f" Did you mean {hint!r}?" if hint else ""
        known = ", ".join(server.listed) or "none"
        raise ValueError(f"tool ({tool!r}) must be one of {address}.{meant} It has: {known}.")
    return McpTool(server, server.listed[tool], own_server=True)

"""An MCP server with either major version of the SDK, over stdio or HTTP.

Run with ``python mcp_server.py [--port N] [--one TOOL] [--stubborn] [--slow-start SECONDS]``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time

try:
    from mcp.server.mcpserver import Image, MCPServer
except ImportError:  # Version 1.
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image

notes: list[str] = []
app = MCPServer("desk")


def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


def note(text: str) -> list[str]:
    """Write a note down and read all of them."""
    notes.append(text)
    return notes


def process() -> dict[str, int]:
    """The id of the server's process."""
    return {"pid": os.getpid()}


def variable(name: str) -> str:
    """Read a variable of the environment."""
    return os.environ.get(name, "nothing")


def refuse() -> str:
    """Raise an error, always."""
    raise ValueError("this is refused")


def picture() -> Image:
    """Draw."""
    return Image(data=b"\x89PNG", format="png")


async def wait(seconds: float) -> str:
    """Take some time."""
    await asyncio.sleep(seconds)
    return "done"


def die() -> str:
    """End the server."""
    sys.stderr.write("out of coffee\n")
    sys.stderr.flush()
    os._exit(3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--one", default="", help="offer this tool alone")
    parser.add_argument("--stubborn", action="store_true", help="end by SIGKILL only")
    parser.add_argument("--slow-start", type=float, default=0.0)
    chosen = parser.parse_args()
    time.sleep(chosen.slow_start)
    if chosen.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for function in (add, note, process, variable, refuse, picture, wait, die):
        if chosen.one in ("", function.__name__):
            app.tool()(function)
    if not chosen.port:
        app.run()
    elif "settings" in dir(app) and "port" in dir(app.settings):
        app.settings.port = chosen.port
        app.run("streamable-http")
    else:
        app.run("streamable-http", port=chosen.port)
    while chosen.stubborn:
        time.sleep(1)


if __name__ == "__main__":
    main()

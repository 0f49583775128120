"""Tools of Model Context Protocol servers, over stdio and streamable HTTP.

``tools.make("mcp", command="python server.py", tool="add")`` makes one of a server's tools.
:class:`McpServer` provides all of a server's tools. Both need the SDK ``mcp``, version 1 or 2:
``pip install 'turnwise[mcp]'``.
"""

from tools.mcp.connection import Address
from tools.mcp.make import mcp_tool
from tools.mcp.server import McpServer
from tools.mcp.tool import McpTool

__all__ = ["Address", "McpServer", "McpTool", "mcp_tool"]

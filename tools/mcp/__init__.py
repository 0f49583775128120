"""Tools of Model Context Protocol servers, over stdio and streamable HTTP.

``tools.make("mcp", command="python server.py", tool="add")`` makes one tool of a server.
:class:`McpServer` provides all tools of a server over one connection. Both need ``pip install
'turnwise[mcp]'``; versions 1 and 2 of the SDK ``mcp`` are supported.
"""

from tools.mcp.connection import Address
from tools.mcp.make import mcp_tool
from tools.mcp.server import McpServer
from tools.mcp.tool import McpTool

__all__ = ["Address", "McpServer", "McpTool", "mcp_tool"]

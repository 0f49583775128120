"""Tools that agents call, and the services behind them.

``@tools.tool`` makes a tool from a function. ``tools.make("search", ...)`` makes a tool by name.
"""

from tools.function import FunctionTool, tool
from tools.registration import make, names, register
from tools.tool import BadArguments, Tool, ToolContext, ToolFailure, ToolResult

__all__ = [
    "BadArguments",
    "FunctionTool",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolResult",
    "make",
    "names",
    "register",
    "tool",
]

register("bash", "tools.builtin.bash:bash_tool")
register("calculator", "tools.builtin.calculator:calculator_tool")
register("edit", "tools.builtin.edit:edit_tool")
register("fix", "tools.builtin.fix:fix_tool")
register("mcp", "tools.mcp:mcp_tool")
register("python", "tools.builtin.python:python_tool")
register("read", "tools.builtin.read:read_tool")
register("search", "tools.builtin.search:search_tool")
register("submit", "tools.builtin.submit:SubmitTool")

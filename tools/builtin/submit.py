"""The ``submit`` tool: a call whose argument is the answer. It ends the episode."""

from __future__ import annotations

from tools.function import FunctionTool
from tools.tool import BadArguments, ToolResult


class SubmitTool(FunctionTool):
    """Submits an answer.

    ``ToolResult.data`` is the agent's answer without surrounding white space.
    """

    final = True

    def __init__(self) -> None:
        super().__init__(_submit, name="submit")


def _submit(answer: str) -> ToolResult:
    """Hand in the final answer. Nothing can be said after it.

    Args:
        answer: The answer alone, without explanation.
    """
    if not answer.strip():
        raise BadArguments("the answer is empty")
    return ToolResult("Submitted.", data=answer.strip())

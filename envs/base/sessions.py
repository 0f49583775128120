"""An episode's session with a tool. It starts at the first call and ends with the episode."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from envs.episode import EnvFailure
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult, failure_of

_numbers = itertools.count()


def new_name() -> str:
    """A name for an episode, under which its tools keep their state."""
    return f"episode-{next(_numbers)}"


class ToolSession:
    """One episode's session with one tool.

    Args:
        tool: a tool that many episodes share.
        timeout_s: seconds that one call may take.
        name: the episode's name. All tools of an episode receive the same one.
    """

    def __init__(self, tool: Tool, timeout_s: float, name: str) -> None:
        self._tool = tool
        self._timeout_s = timeout_s
        self._name = name

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool.

        Raises:
            EnvFailure: the tool failed.
        """
        context = ToolContext(session=self._name, timeout_s=self._timeout_s)
        try:
            result = await self._tool(arguments, context)
            if not isinstance(result, ToolResult):
                raise TypeError(f"it returned {type(result).__name__}, not a ToolResult")
        except ToolFailure as error:
            raise EnvFailure(str(error), retryable=error.retryable) from error
        # Tools are foreign code: any other exception is the tool's fault, not the agent's.
        except Exception as error:
            problem = str(failure_of(self._tool.name, error))
            raise EnvFailure(problem, retryable=False) from error
        return result

    async def fork(self, tool: Tool, name: str) -> ToolSession:
        """A copy of the session for a forked episode.

        Args:
            tool: the same tool, wrapped so that calls enter the fork's own record.
            name: the forked episode's name.

        Raises:
            EnvFailure: the tool could not copy its state.
        """
        twin = ToolSession(tool, self._timeout_s, name)
        try:
            await self._tool.fork(self._name, name)
        except ToolFailure as error:
            raise EnvFailure(str(error), retryable=error.retryable) from error
        return twin

    async def end(self) -> None:
        """End the session. Ending twice is harmless."""
        await self._tool.end(self._name)

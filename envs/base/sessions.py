"""What a tool keeps for an episode: begun at the first call, copied by a fork, ended with it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from envs.episode import EnvFailure
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult

_numbers = itertools.count()


class ToolSession:
    """One episode's session with one tool.

    Args:
        tool: shared by many episodes.
        timeout_s: of one call.
    """

    def __init__(self, tool: Tool, timeout_s: float) -> None:
        self._tool = tool
        self._timeout_s = timeout_s
        self._name = f"episode-{next(_numbers)}"

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool.

        Raises:
            EnvFailure: it failed.
        """
        context = ToolContext(session=self._name, timeout_s=self._timeout_s)
        try:
            result = await self._tool(arguments, context)
            if not isinstance(result, ToolResult):
                raise TypeError(f"it answered {type(result).__name__}, not a ToolResult")
        except ToolFailure as error:
            raise EnvFailure(str(error), retryable=error.retryable) from error
        # A tool may be anybody's: whatever else it raises is its own fault, not the agent's.
        except Exception as error:
            raise EnvFailure(
                f"tool {self._tool.name!r} failed: {type(error).__name__}: {error}", retryable=False
            ) from error
        return result

    async def fork(self, tool: Tool) -> ToolSession:
        """A session for another episode that goes on from here.

        Args:
            tool: the same one, as that episode calls it: its record may be another.

        Raises:
            EnvFailure: what the tool keeps could not be copied.
        """
        twin = ToolSession(tool, self._timeout_s)
        try:
            await self._tool.fork(self._name, twin._name)
        except ToolFailure as error:
            raise EnvFailure(str(error), retryable=error.retryable) from error
        return twin

    async def end(self) -> None:
        """The episode is over. Ending twice is harmless."""
        await self._tool.end(self._name)

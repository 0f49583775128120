"""The contract of a tool: named, described, typed, called with arguments, answering in text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ToolFailure(RuntimeError):
    """Raised when a tool cannot answer for reasons that are not its caller's. Never a reward."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class BadArguments(ValueError):
    """Raised inside a tool whose arguments make no sense; the message is shown to the model."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may know about the episode that makes it."""

    session: str = ""
    """Names the episode, for tools that keep something from call to call."""
    timeout_s: float = 60.0
    """A call that takes longer, all attempts together, fails (ToolFailure, retryable)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call answers."""

    text: str
    """What the model reads, also after a mistake of its own."""
    data: Any = None
    """The same as plain data, for environments and records."""
    error: str | None = None
    """What the caller did wrong; None where nothing."""
    cost: float = 0.0
    """What the call cost, in the tool's own unit (money, credits)."""


class Tool(ABC):
    """Something an agent can call. :func:`tools.tool` makes one from a function."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (an object) of the arguments."""
    stateful: bool = False
    """Whether it keeps something for an episode from call to call. A restored snapshot repeats the
    calls of such a tool."""
    forkable: bool = True
    """Whether what it keeps for an episode can be copied by ``fork``."""
    final: bool = False
    """Whether a call without a mistake ends the episode, its result's data being the answer."""

    @abstractmethod
    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Do it. Arguments that do not fit the schema become a result with an ``error``.

        Raises:
            ToolFailure: the tool, not its caller, is at fault.
        """

    async def open(self) -> None:  # noqa: B027
        """Start the tool's resources; the owner of the tool awaits it once, before the first call."""

    async def close(self) -> None:  # noqa: B027
        """Give back what was started, after the last call. Harmless where nothing was."""

    async def fork(self, session: str, twin: str) -> None:  # noqa: B027
        """The episode ``twin`` goes on from the state of the episode ``session``.

        A tool that keeps nothing from call to call has nothing to do.

        Raises:
            ToolFailure: what it keeps cannot be copied.
        """

    async def end(self, session: str) -> None:  # noqa: B027
        """The episode is over: drop what was kept for it. Harmless where nothing was."""

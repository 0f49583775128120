"""The contract of a tool: a name, a description, typed arguments, and results as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ToolFailure(RuntimeError):
    """Raised when a tool fails through no fault of the caller. Never a reward."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class BadArguments(ValueError):
    """Raised inside a tool for invalid arguments; the model reads the message."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The episode that makes a call, and the call's deadline."""

    session: str = ""
    """The episode's session name, for stateful tools."""
    timeout_s: float = 60.0
    """Seconds for all attempts of a call; a longer call fails (ToolFailure, retryable)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str
    """Text for the model, also after a mistake of the model."""
    data: Any = None
    """The same content as plain data, for environments and records."""
    error: str | None = None
    """The caller's mistake; None if there was none."""
    cost: float = 0.0
    """Cost of the call in the tool's own unit (money, credits)."""


class Tool(ABC):
    """A tool that an agent can call. :func:`tools.tool` makes one from a function."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (an object) of the arguments."""
    stateful: bool = False
    """Whether the tool keeps state between the calls of an episode. A restored environment repeats
    such calls."""
    forkable: bool = True
    """Whether ``fork`` can copy an episode's state."""
    final: bool = False
    """Whether a valid call ends the episode; the answer is the result's ``data``."""

    @abstractmethod
    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Call the tool. Arguments that violate the schema give a result with an ``error``.

        Raises:
            ToolFailure: the tool failed through no fault of the caller.
        """

    async def open(self) -> None:  # noqa: B027
        """Open the tool's resources; the tool's owner awaits ``open`` once, before all calls."""

    async def close(self) -> None:  # noqa: B027
        """Release the tool's resources after the last call. Harmless if it has none."""

    async def fork(self, session: str, twin: str) -> None:  # noqa: B027
        """Copy the state of the episode ``session`` to the episode ``twin``.

        A stateless tool does nothing.

        Raises:
            ToolFailure: the state cannot be copied.
        """

    async def end(self, session: str) -> None:  # noqa: B027
        """Drop an episode's state at its end. Harmless if there is none."""

"""The contract of a tool: a name, a description, typed arguments, and results as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class ToolFailure(RuntimeError):
    """Raised when a tool fails through no fault of the caller. A failure never becomes a reward."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class BadArguments(ValueError):
    """Raised by a tool's code for invalid arguments. The model reads the exception's message."""


def failure_of(name: str, error: BaseException) -> ToolFailure:
    """The failure of a tool whose code raised an exception of another type."""
    problem = f"tool {name!r} failed: {type(error).__name__}: {error}"
    if isinstance(error, ValueError | LookupError | ArithmeticError):
        problem += "; for a wrong argument of the model, the tool must raise tools.BadArguments"
    return ToolFailure(problem, retryable=False)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The episode that makes a call, and the call's deadline."""

    session: str = ""
    """Name of the episode. A stateful tool keeps one state for each name."""
    timeout_s: float = 60.0
    """Time limit in seconds for all attempts of the call together. A longer call raises a retryable
    :class:`ToolFailure`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str
    """Text that the model reads. After a mistake of the model, this is the error message."""
    data: Any = None
    """The same content as plain data, for environments and records."""
    error: str | None = None
    """Description of the model's mistake, or None if the call was valid."""
    cost: float = 0.0
    """Cost of the call in the unit that the tool uses, such as money or credits."""
    retries: int = 0
    """Number of further attempts after failures of the tool's infrastructure."""
    status: str = ""
    """How the call ended in the tool's own terms, such as "exit 1", "timeout" or "HTTP 503". Empty
    if the tool has no such terms. The model does not read it."""


class Tool(ABC):
    """A tool that an agent can call. :func:`tools.tool` makes one from a function."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (an object) of the arguments."""
    stateful: bool = False
    """Whether the tool keeps state between the calls of an episode. An environment that is restored
    repeats the calls of stateful tools."""
    forkable: bool = True
    """Whether ``fork`` can copy the state of an episode."""
    final: bool = False
    """Whether a valid call ends the episode. The result's ``data`` is then the agent's answer."""

    @abstractmethod
    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Call the tool. If the arguments violate the schema, the result has an ``error``.

        Raises:
            ToolFailure: the tool failed through no fault of the caller.
        """

    def join(self, tools: Iterable[Tool]) -> None:  # noqa: B027
        """Share state with ``tools``, the tools of the same agent that were made before this one.

        Called before ``open``. Most tools share nothing.
        """

    async def open(self) -> None:  # noqa: B027
        """Open the tool's resources.

        The tool's owner awaits ``open`` once, before the first call.
        """

    async def close(self) -> None:  # noqa: B027
        """Release the tool's resources after the last call. Do nothing if the tool has none."""

    async def fork(self, session: str, twin: str) -> None:  # noqa: B027
        """Copy the state of the episode ``session`` to the episode ``twin``.

        A stateless tool does nothing.

        Raises:
            ToolFailure: the state cannot be copied.
        """

    async def end(self, session: str) -> None:  # noqa: B027
        """Drop the state of the episode ``session``, which ends. Do nothing if there is none."""

"""The contract of a workspace: files, and a shell that keeps its state, for one episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of one command."""

    exit_code: int | None
    """Exit code of the command; 128 plus the signal's number if a signal ended it. None if the
    command was interrupted, or ended the workspace."""
    output: str
    """Standard output and standard error in the order in which they were written. Bytes that are
    not UTF-8 are replaced. The middle of a long output is left out, and a line says so."""
    timed_out: bool = False
    """Whether the command took longer than its limit and was interrupted."""
    over: bool = False
    """Whether the workspace ended with this command. Its files are lost."""
    detail: str = ""
    """How the command or the workspace ended, in words, if it did not end normally."""
    left_out: int = 0
    """Number of characters that ``output`` leaves out."""


class Workspace(Protocol):
    """A place with files and a stateful shell, which belongs to one episode.

    Calls of one workspace run one after another. Paths are absolute, or relative to the folder in
    which the workspace starts, even after ``cd``. Every method raises :class:`WorkspaceOver` after
    the workspace has ended, and :class:`WorkspaceFailure` if the infrastructure fails.
    """

    @property
    def forkable(self) -> bool:
        """Whether ``fork`` can copy the workspace."""
        ...

    async def run(self, command: str, *, wall_s: float | None = None) -> CommandResult:
        """Run a command in the episode's shell. Directory and variables stay for the next command.

        The call returns when the command's shell is done, even if background jobs still run. No
        job outlives the workspace.

        Args:
            command: the command line or script.
            wall_s: seconds after which the command is interrupted, or None for the workspace's
                default. The workspace continues, if the command can be stopped.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The content of a regular file.

        Raises:
            OSError: there is no such file, it is not a regular file, or it may not be read.
            ValueError: the file has more than ``max_bytes``.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file. Missing folders are made. An existing file keeps its mode.

        Raises:
            OSError: the file cannot be written.
        """
        ...

    async def fork(self) -> Workspace:
        """A second workspace with copies of the files and of the shell's directory and variables.

        Raises:
            ForkRefused: the workspace cannot be copied.
        """
        ...

    async def close(self) -> None:
        """End the workspace with all of its processes. Closing twice is harmless."""
        ...

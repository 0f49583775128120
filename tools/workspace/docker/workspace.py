"""Workspaces in Docker containers: each is a container with a shell that keeps its state."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

from tools.workspace.docker import shell
from tools.workspace.docker.container import Container, ContainerSpec, archive_of
from tools.workspace.docker.engine import Engine
from tools.workspace.errors import ForkRefused, WorkspaceFailure, WorkspaceOver
from tools.workspace.workspace import CommandResult, Workspace

logger = logging.getLogger(__name__)
NO_TIME = "not run: the time for commands is used up"
_FILE_S = 60.0
"""Time limit in seconds of small commands that the workspace itself runs."""
_STOP_S = 15.0
"""Seconds within which an interrupted command must have ended."""
_INCOMING = "incoming"
"""Name of the file in the shell's folder that holds what a write copies to its place."""
_READ = '[ -e "$1" ] || exit 66; [ -f "$1" ] || exit 67; exec cat -- "$1" 2>/dev/null'
_READ_ERRORS = {66: (2, "No such file"), 67: (22, "Not a regular file")}
_WRITE = 'folder=$(dirname -- "$2") && mkdir -p -- "$folder" && cat -- "$1" >"$2"'


class DockerWorkspace:
    """A workspace in a container of its own, which ``start`` makes.

    The container must have bash. A container that ends while the workspace is open raises
    :class:`WorkspaceFailure`: its first process cannot be stopped from inside. A workspace cannot
    be copied, because an image of a container (``docker commit``) has no processes and takes
    seconds.

    Args:
        container: a running container, which ``close`` removes.
        workdir: folder in which the shell starts, and to which paths are relative.
        user: name or id of the user that runs commands. If empty, the image's.
        wall_s: default time limit of a command in seconds.
        max_chars: maximum number of characters of a command's output.
        budget_s: seconds that all commands together may take, or None for no limit.
    """

    forkable = False

    def __init__(
        self,
        container: Container,
        workdir: str,
        *,
        user: str = "",
        wall_s: float = 60.0,
        max_chars: int = 10_000,
        budget_s: float | None = None,
    ) -> None:
        self.container = container
        self.workdir = workdir
        self._user = user
        self._wall_s = wall_s
        self._max_chars = max_chars
        self.budget_s = budget_s
        """Seconds left for commands, or None for no limit."""
        self._lock = asyncio.Lock()
        self._closed = False

    @classmethod
    async def start(
        cls,
        engine: Engine,
        spec: ContainerSpec,
        *,
        user: str = "",
        wall_s: float = 60.0,
        max_chars: int = 10_000,
        budget_s: float | None = None,
    ) -> DockerWorkspace:
        """Start a container and make it a workspace.

        Raises:
            WorkspaceFailure: the container does not start, or has no bash.
        """
        container = await Container.start(engine, spec)
        try:
            workdir = spec.workdir or await container.default_workdir()
            made = f'mkdir -p "$1" {shell.FOLDER} && chmod 1777 {shell.FOLDER} && command -v bash'
            await container.check_call(["sh", "-c", made, "sh", workdir])
        except BaseException:
            await container.remove()
            raise
        return cls(
            container,
            workdir,
            user=user,
            wall_s=wall_s,
            max_chars=max_chars,
            budget_s=budget_s,
        )

    # ---- the contract; see Workspace -------------------------------------------------------

    async def run(self, command: str, *, wall_s: float | None = None) -> CommandResult:
        """Run a command; see :class:`tools.workspace.Workspace`.

        Raises:
            ValueError: the command has a NUL character, or ``wall_s`` is not above 0.
        """
        if "\0" in command:
            raise ValueError("a command cannot have a NUL character")
        seconds = self._wall_s if wall_s is None else wall_s
        if not seconds > 0:
            raise ValueError(f"wall_s ({seconds}) must be above 0")
        async with self._lock:
            self._check_open()
            if self.budget_s is not None:
                if self.budget_s <= 0:
                    return CommandResult(None, "", True, detail=NO_TIME)
                seconds = min(seconds, self.budget_s)
            text = command.encode("utf-8", "replace")
            if len(text) > shell.MAX_ARGUMENT:
                name = PurePosixPath(shell.COMMAND_FILE).name
                await self.container.put_archive(shell.FOLDER, archive_of({name: text}))
            started = time.monotonic()
            try:
                given = None if len(text) > shell.MAX_ARGUMENT else text.decode()
                return await self._run(given, seconds)
            finally:
                if self.budget_s is not None:
                    self.budget_s -= time.monotonic() - started

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The content of a file; see :class:`tools.workspace.Workspace`."""
        async with self._lock:
            self._check_open()
            place, data = self._place(path), bytearray()
            process = self.container.execute(
                ["sh", "-c", _READ, "sh", place], user=self._user, workdir="/", wall_s=_FILE_S
            )
            async with process as reading:
                async for part in reading.output():
                    data += part
                    if len(data) > max_bytes:
                        raise ValueError(f"{path} has more than {max_bytes} bytes")
                code = await reading.exit_code()
            if code != 0:
                await self.container.check_running()
                raise OSError(*_READ_ERRORS.get(code or 0, (5, "Cannot be read")), path)
            return bytes(data)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see :class:`tools.workspace.Workspace`."""
        async with self._lock:
            self._check_open()
            place = self._place(path)
            await self.container.put_archive(shell.FOLDER, archive_of({_INCOMING: data}))
            argv = ["sh", "-c", _WRITE, "sh", f"{shell.FOLDER}/{_INCOMING}", place]
            process = self.container.execute(argv, user=self._user, workdir="/", wall_s=_FILE_S)
            said = b""
            async with process as writing:
                async for part in writing.output():
                    said = (said + part)[-200:]
                code = await writing.exit_code()
            if code != 0:
                await self.container.check_running()
                raise OSError(
                    13, said.decode(errors="replace").strip() or "Cannot be written", path
                )

    async def fork(self) -> Workspace:
        """Refuse: a container cannot be copied with its processes."""
        raise ForkRefused("a Docker container cannot be copied with its processes")

    async def close(self) -> None:
        """Remove the container; see :class:`tools.workspace.Workspace`."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.container.remove()
        except WorkspaceFailure as error:
            # The next start of an Engine removes it, and it ends by itself after its life.
            logger.warning("container %s was not removed: %s", self.container.ident, error)

    # ---- internals -------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise WorkspaceOver("the workspace has ended: it was closed")

    async def _run(self, command: str | None, seconds: float) -> CommandResult:
        marker = f"turnwise-{secrets.token_hex(16)}"
        output = shell.CommandOutput(marker, self._max_chars)
        argv = ["bash", "--norc", "--noprofile", "-c", shell.script(command, marker)]
        running = self.container.execute(
            argv, user=self._user, workdir=self.workdir, wall_s=seconds + 2 * _STOP_S + _FILE_S
        )
        timed_out, code = False, None
        async with running as process:
            reading = asyncio.ensure_future(_read(process.output(), output))
            try:
                done, _ = await asyncio.wait([reading], timeout=seconds)
                if not done:
                    timed_out = True
                    await self._stop()
                    await asyncio.wait([reading], timeout=_STOP_S)
                if reading.done():
                    await reading
            finally:
                reading.cancel()
            code = output.exit_code
            if code is None and not timed_out:
                code = await process.exit_code()
        text, left_out = output.result()
        if timed_out:
            detail = f"interrupted after {seconds:g} s"
            return CommandResult(None, text, True, detail=detail, left_out=left_out)
        if output.exit_code is None:
            # The shell ended without its report: it was killed, alone or with the container.
            await self.container.check_running()
        return CommandResult(code, text, left_out=left_out)

    async def _stop(self) -> None:
        try:
            await self.container.check_call(["sh", "-c", shell.STOP], wall_s=_STOP_S)
        except WorkspaceFailure:
            # The agent may have removed what the script needs; the caller stops reading anyway.
            await self.container.check_running()

    def _place(self, path: str) -> str:
        """The absolute path of ``path``."""
        if not path or "\0" in path:
            raise OSError(22, "Not a path", path)
        return str(PurePosixPath(self.workdir, path))


async def _read(parts: AsyncIterator[bytes], output: shell.CommandOutput) -> None:
    """Read until the shell reports its end, or the output ends."""
    async for part in parts:
        if output.feed(part):
            return

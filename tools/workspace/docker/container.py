"""Containers of workspaces: options, start, removal, files and commands."""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tools.sandbox.backends.docker.container import OWNER_LABEL
from tools.workspace.docker.engine import Engine, EngineError
from tools.workspace.errors import WorkspaceFailure

WORKSPACE_LABEL = "turnwise.workspace"
"""Label of every container of a workspace."""
_STARTED_S = 120.0
"""Maximum seconds from a container's creation to its start."""
_REMOVED_S = 60.0
"""Maximum seconds that the engine takes to kill and remove a container."""
_FRAME = 8
"""Number of bytes of the header with which the engine frames output."""
_NOT_FOUND = 404
_CONFLICT = 409


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """Options of a workspace's container."""

    image: str
    """Name or id of an image that the engine has."""
    cpus: float = 1.0
    """Number of processors."""
    memory_mb: int = 2048
    """Memory limit in MiB, including swap."""
    pids: int = 1024
    """Maximum number of processes and threads."""
    network: bool = False
    """Whether the container is on the engine's default network. If False, it has no network."""
    workdir: str = ""
    """Folder in which commands start. If empty, the image's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of all processes, besides the image's."""
    life_s: float = 86_400.0
    """Seconds after which the container ends by itself, even if its owner has died."""


class Container:
    """A running container. ``start`` makes it; ``remove`` kills it with all of its processes.

    The container's first process ignores signals from inside, so that no command of an agent ends
    the container. A container that ends is therefore a failure of the infrastructure.
    """

    def __init__(self, engine: Engine, ident: str) -> None:
        self.engine = engine
        self.ident = ident
        """The container's name."""

    @classmethod
    async def start(cls, engine: Engine, spec: ContainerSpec) -> Container:
        """Create a container and start it.

        Raises:
            EngineError: the engine lacks the image, or refuses an option.
            WorkspaceFailure: the container does not start in time.
        """
        # A name of our own: a creation whose answer is lost can still be undone.
        container = cls(engine, f"turnwise-{secrets.token_hex(16)}")
        params, options = {"name": container.ident}, _options(engine, spec)
        try:
            await engine.call("POST", "/containers/create", params=params, body=options)
            await engine.call("POST", f"/containers/{container.ident}/start", wall_s=_STARTED_S)
        except BaseException:
            await container.remove()
            raise
        return container

    async def remove(self) -> None:
        """Kill and remove the container with its anonymous volumes. Removing twice is harmless.

        Raises:
            WorkspaceFailure: the engine does not remove the container in time.
        """
        params = {"force": "true", "v": "true"}
        try:
            await self.engine.call(
                "DELETE", f"/containers/{self.ident}", params=params, wall_s=_REMOVED_S
            )
        except EngineError as error:
            # Absent, or a removal is in progress already.
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    async def check_running(self) -> None:
        """Check that the container runs.

        Raises:
            WorkspaceFailure: the container has ended or was removed.
        """
        try:
            found = await self.engine.call("GET", f"/containers/{self.ident}/json")
        except EngineError as error:
            if error.status != _NOT_FOUND:
                raise
            raise WorkspaceFailure("docker: the container was removed") from error
        state = found["State"]
        if not state["Running"]:
            raise WorkspaceFailure(
                f"docker: the container has ended (exit code {state['ExitCode']})"
            )

    async def default_workdir(self) -> str:
        """The folder in which processes of the container start."""
        found = await self.engine.call("GET", f"/containers/{self.ident}/json")
        return str(found["Config"]["WorkingDir"] or "/")

    # ---- commands --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def execute(
        self,
        command: list[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        workdir: str = "",
        wall_s: float,
    ) -> AsyncIterator[Execution]:
        """Start a process in the container; leaving the context closes its output.

        Args:
            command: the program and its arguments.
            user: name or id of the user. If empty, the image's.
            env: further variables.
            workdir: folder in which the process starts. If empty, the container's.
            wall_s: seconds within which the caller must read the output.

        Raises:
            WorkspaceFailure: the container has ended, or the engine fails.
        """
        options = {
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": command,
            "User": user,
            "Env": [f"{name}={value}" for name, value in (env or {}).items()],
            **({"WorkingDir": workdir} if workdir else {}),
        }
        try:
            made = await self.engine.call("POST", f"/containers/{self.ident}/exec", body=options)
        except EngineError as error:
            if error.status in (_NOT_FOUND, _CONFLICT):
                await self.check_running()
            raise
        ident = str(made["Id"])
        start = {"Detach": False, "Tty": False}
        async with self.engine.request(
            "POST", f"/exec/{ident}/start", body=start, wall_s=wall_s
        ) as answer:
            yield Execution(self, ident, answer.content.iter_any())

    async def check_call(self, command: list[str], *, user: str = "0", wall_s: float = 60.0) -> str:
        """Run a trusted command as root and return its output.

        Raises:
            WorkspaceFailure: the command fails, or the container has ended.
        """
        output = bytearray()
        async with self.execute(command, user=user, workdir="/", wall_s=wall_s) as running:
            async for part in running.output():
                output += part[: 1 << 16]
            code = await running.exit_code()
        text = output.decode(errors="replace")
        if code != 0:
            await self.check_running()
            raise WorkspaceFailure(
                f"docker: {command[0]} in the container ended with {code}: {text[-200:].strip()}"
            )
        return text

    # ---- files -----------------------------------------------------------------------------

    async def get_archive(self, path: str, max_bytes: int) -> bytes:
        """The file or folder at ``path`` as a tar archive.

        Raises:
            FileNotFoundError: there is nothing at the path.
            ValueError: the archive has more than ``max_bytes``.
        """
        place = f"/containers/{self.ident}/archive"
        try:
            return await self.engine.get_bytes(place, {"path": path}, max_bytes)
        except EngineError as error:
            if error.status == _NOT_FOUND:
                await self.check_running()
                raise FileNotFoundError(2, "No such file or folder", path) from error
            raise
        except ValueError as error:
            raise ValueError(f"{path} has {error}") from error

    async def put_archive(self, folder: str, archive: bytes) -> None:
        """Unpack a tar archive in a folder of the container.

        Raises:
            FileNotFoundError: there is no such folder.
            OSError: the archive cannot be unpacked there.
        """
        place = f"/containers/{self.ident}/archive"
        try:
            await self.engine.call("PUT", place, params={"path": folder}, body=archive)
        except EngineError as error:
            await self.check_running()
            if error.status == _NOT_FOUND:
                raise FileNotFoundError(2, "No such folder", folder) from error
            raise OSError(5, str(error), folder) from error

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """The content of a regular file; symbolic links are not followed.

        Raises:
            OSError: there is no such file, or it is not a regular file.
            ValueError: the file has more than ``max_bytes``.
        """
        # A tar archive adds headers and padding.
        packed = await self.get_archive(path, max_bytes + (1 << 16))
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            entry = archive.next()
            if entry is None or not entry.isreg():
                raise OSError(22, "Not a regular file", path)
            if entry.size > max_bytes:
                raise ValueError(f"{path} has more than {max_bytes} bytes")
            file = archive.extractfile(entry)
            return b"" if file is None else file.read()


class Execution:
    """A process in a container, with its output."""

    def __init__(self, container: Container, ident: str, stream: AsyncIterator[bytes]) -> None:
        self._container = container
        self._ident = ident
        self._stream = stream

    async def output(self) -> AsyncIterator[bytes]:
        """The parts of standard output and standard error, as they arrive."""
        received = bytearray()
        async for part in self._stream:
            received += part
            at = 0
            while len(received) - at >= _FRAME:
                length = int.from_bytes(received[at + 4 : at + _FRAME], "big")
                # The engine's frames are short, so a frame is passed on as a whole.
                if len(received) - at - _FRAME < length:
                    break
                yield bytes(received[at + _FRAME : at + _FRAME + length])
                at += _FRAME + length
            del received[:at]

    async def exit_code(self) -> int | None:
        """The exit code, or None if the process still runs."""
        try:
            found = await self._container.engine.call("GET", f"/exec/{self._ident}/json")
        except EngineError:
            await self._container.check_running()
            raise
        return None if found["Running"] else int(found["ExitCode"])


def archive_of(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    """A tar archive of files by relative path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(str(PurePosixPath(path)))
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _options(engine: Engine, spec: ContainerSpec) -> dict[str, object]:
    return {
        "Image": spec.image,
        # The image's own entry point runs first, if there is one.
        "Cmd": ["sh", "-c", f"exec sleep {spec.life_s:.0f}"],
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": {OWNER_LABEL: engine.owner, WORKSPACE_LABEL: "1"},
        **({"WorkingDir": spec.workdir} if spec.workdir else {}),
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "default" if spec.network else "none",
            "NanoCpus": round(spec.cpus * 1e9),
            "Memory": spec.memory_mb << 20,
            "MemorySwap": spec.memory_mb << 20,
            "PidsLimit": spec.pids,
            "OomScoreAdj": 500,
            "LogConfig": {"Type": "none"},
            "IpcMode": "private",
        },
    }

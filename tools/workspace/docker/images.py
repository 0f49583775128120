"""Builds images from folders with a Dockerfile, and keeps them by the content of the folder."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tools.workspace.docker.engine import Engine, EngineError
from tools.workspace.errors import WorkspaceFailure

REPOSITORY = "turnwise-workspace"
"""Repository of the images that this module builds. The tag is a hash of the content."""
_MAX_CONTEXT = 1 << 30
"""Maximum number of bytes of a folder's files."""
_TAIL = 800
"""Number of characters of a failed build's output that an error repeats."""


class BuildFailed(WorkspaceFailure):
    """Raised when an image cannot be built or is absent. Another attempt fails in the same way."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ImageBuilder:
    """Images of one engine. Concurrent requests for one image build it once.

    Args:
        engine: an open engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._locks: dict[str, asyncio.Lock] = {}

    async def check_present(self, image: str) -> None:
        """Check that the engine has an image. This never downloads an image.

        Raises:
            BuildFailed: the engine does not have the image.
        """
        if not await self._has(image):
            raise BuildFailed(
                f"docker: the engine has no image {image!r}: load it (`docker pull {image}`, or "
                f"`docker import` where there is no registry)"
            )

    async def build(self, folder: Path, wall_s: float) -> str:
        """The image of a folder with a Dockerfile. It is built unless the engine has it.

        The image's name is a hash of the folder's files. A change of the Dockerfile's base image
        under the same name is not noticed; remove the image to build it again.

        Raises:
            BuildFailed: the build fails, or takes longer than ``wall_s`` seconds.
            WorkspaceFailure: the engine fails.
        """
        packed = await asyncio.to_thread(pack, folder)
        name = f"{REPOSITORY}:{hashlib.sha256(packed).hexdigest()[:32]}"
        async with self._locks.setdefault(name, asyncio.Lock()):
            if not await self._has(name):
                await self._build(folder, packed, name, wall_s)
        return name

    async def _has(self, image: str) -> bool:
        try:
            await self._engine.call("GET", f"/images/{image}/json")
        except EngineError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _build(self, folder: Path, packed: bytes, name: str, wall_s: float) -> None:
        params = {"t": name, "rm": "true", "forcerm": "true", "version": "1"}
        log, failure = "", ""
        started = asyncio.get_running_loop().time()
        try:
            request = self._engine.request(
                "POST", "/build", params=params, body=packed, wall_s=wall_s
            )
            async with request as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    log = (log + str(event.get("stream", "")))[-_TAIL:]
                    failure = str(event.get("error", "")) or failure
        except EngineError as error:
            if error.status >= 500:
                raise
            failure = str(error)
        except WorkspaceFailure as error:
            if asyncio.get_running_loop().time() - started < wall_s:
                raise
            failure = f"it took longer than {wall_s:g} s ({error})"
        if failure:
            raise BuildFailed(f"docker: the build of {folder} failed: {failure}\n{log.strip()}")


def pack(folder: Path) -> bytes:
    """The folder's files as a tar archive, equal for equal content.

    Raises:
        BuildFailed: a file cannot be read, or the files have more than 1 GiB.
    """
    buffer, size = io.BytesIO(), 0
    try:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in _walk(folder):
                entry = _entry(path, path.relative_to(folder).as_posix())
                if entry is None:
                    continue
                size += entry.size
                if size > _MAX_CONTEXT:
                    raise BuildFailed(f"docker: {folder} has more than {_MAX_CONTEXT} bytes")
                if entry.isreg():
                    with path.open("rb") as file:
                        archive.addfile(entry, file)
                else:
                    archive.addfile(entry)
    except OSError as error:
        raise BuildFailed(f"docker: {folder} cannot be read: {error}") from error
    return buffer.getvalue()


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        # A link to a folder is an entry of its own; os.walk does not follow it.
        for name in sorted([*folders, *files]):
            yield Path(root, name)


def _entry(path: Path, name: str) -> tarfile.TarInfo | None:
    """The archive's entry of a file, folder or link; None for any other kind."""
    status = path.lstat()
    entry = tarfile.TarInfo(name)
    executable = status.st_mode & stat.S_IXUSR
    entry.mode = 0o755 if executable or stat.S_ISDIR(status.st_mode) else 0o644
    if stat.S_ISREG(status.st_mode):
        entry.size = status.st_size
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
    else:
        return None
    return entry

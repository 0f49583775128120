"""Builds the image of a sandbox on this machine and imports it into the engine.

The image holds this machine's Python interpreter, its standard library, the shared libraries that
both load, a shell and a few commands. Nothing is downloaded from a registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tools.sandbox.backends.interpreter import Interpreter
from tools.sandbox.errors import SandboxUnavailable

REPOSITORY = "turnwise-sandbox"
_LAYOUT = 2
"""Version of the image's content. Increment it with each change of the content, so that no older
image is used."""
_PYTHON_LABEL = "turnwise.sandbox.python"

# Commands for programs; their libraries are packed too.
_TOOLS = ("sh", "cat", "cp", "echo", "env", "false", "ls", "mkdir", "mv", "rm", "sleep", "true")
_DATA = ("/usr/share/zoneinfo", "/usr/lib/locale/C.utf8")
_SINGLE = ("/etc/ld.so.cache", "/etc/localtime")
_LOADED_BY_NAME = "libgcc_s.so.1"  # the C library loads it when a thread is cancelled
_EMPTY_FOLDERS = ("dev", "etc", "handover", "proc", "sys", "tmp")
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo"}
    | {"ensurepip", "lib-tk"}
)
_STATIC_LIBRARY = "config-"  # the folder of libpython.a
_MODULES_LEFT_OUT = ("_tkinter.", "_test")  # _tkinter needs the libraries of X
_CHUNK = 1 << 18
_OPTIMISED = (".opt-1.pyc", ".opt-2.pyc")
_LIBRARY_PATH = "import json,sys;print(json.dumps(sys.path))"


def ensure(client: Any, python: Interpreter) -> str:
    """The id of the image for ``python``. Builds the image if the engine does not have it.

    Args:
        client: a ``docker.APIClient``.
        python: the interpreter to pack.

    Raises:
        SandboxUnavailable: the interpreter's files cannot be found.
    """
    name = f"{REPOSITORY}:{_fingerprint(python)}"
    found = client.images(name=name, quiet=True)
    if found:
        return str(found[0])
    with tempfile.TemporaryFile() as file:
        pack(python, file)
        file.seek(0)
        client.import_image_from_stream(
            iter(lambda: file.read(_CHUNK), b""),
            repository=REPOSITORY,
            tag=name.partition(":")[2],
            changes=[f'LABEL {_PYTHON_LABEL}="{python.path}"'],
        )
    image = str(client.images(name=name, quiet=True)[0])
    _remove_older(client, python, image)
    return image


def pack(python: Interpreter, file: BinaryIO) -> None:
    """Write the image's file system as a tar archive.

    Paths in the image are those of this machine.
    """
    with tarfile.open(fileobj=file, mode="w|") as archive:
        packed: set[str] = set()
        for folder in _EMPTY_FOLDERS:
            _add_folder(archive, packed, f"/{folder}", mode=0o1777 if folder == "tmp" else 0o755)
        for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
            if Path(name).is_symlink():
                _add_link(archive, packed, name)
        for path in _files(python):
            _add_file(archive, packed, path)


def _fingerprint(python: Interpreter) -> str:
    """A hash that changes when the interpreter or the installed libraries change."""
    marks = [_LAYOUT, python.path, python.prefix]
    for path in (python.path, *_SINGLE):
        if Path(path).exists():
            status = Path(path).stat()
            marks += [path, status.st_size, status.st_mtime_ns]
    return hashlib.sha256(json.dumps(marks).encode()).hexdigest()[:16]


def _remove_older(client: Any, python: Interpreter, image: str) -> None:
    import docker.errors

    older = client.images(filters={"label": f"{_PYTHON_LABEL}={python.path}"}, quiet=True)
    for other in set(older) - {image}:
        try:
            client.remove_image(other)
        except docker.errors.APIError:
            continue  # containers of another trainer use it


def _files(python: Interpreter) -> Iterator[Path]:
    library = _standard_library(python)
    programs = [Path(python.path)]
    for tool in _TOOLS:
        found = shutil.which(tool, path="/usr/bin:/bin")
        if found is not None:
            programs.append(Path(found))
    modules = [path for path in library if path.suffix == ".so"]
    yield from programs
    yield from library
    yield from _shared_libraries([*programs, *modules])
    for folder in _DATA:
        yield from _walk(Path(folder))
    yield from (Path(path) for path in _SINGLE if Path(path).exists())


def _standard_library(python: Interpreter) -> list[Path]:
    done = subprocess.run(
        [python.path, "-I", "-S", "-c", _LIBRARY_PATH],
        capture_output=True,
        timeout=30,
        check=True,
        env={},
    )
    files: list[Path] = []
    for entry in map(Path, json.loads(done.stdout)):
        files += [entry] if entry.is_file() else _walk(entry)
    if not files:
        raise SandboxUnavailable(f"python ({python.path}): its standard library was not found")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _LEFT_OUT and not name.startswith(_STATIC_LIBRARY)
        )
        for name in sorted(names):
            if not name.endswith(_OPTIMISED) and not name.startswith(_MODULES_LEFT_OUT):
                yield Path(root, name)


def _shared_libraries(objects: list[Path]) -> Iterator[Path]:
    """The libraries that the dynamic linker loads for ``objects``, including the linker."""
    done = subprocess.run(
        ["ldd", *map(str, objects)], capture_output=True, text=True, timeout=60, check=False
    )
    found: set[Path] = set()
    for line in done.stdout.splitlines():
        words = line.split()  # "libz.so.1 => /lib/libz.so.1 (0x...)", "/lib64/ld.so (0x...)"
        if len(words) >= 2 and words[-1].startswith("(0x"):
            path = Path(words[-2])
            if path.is_absolute():
                found.add(path)
    if not found:
        raise SandboxUnavailable(
            f"docker: `ldd {objects[0]}` names no library ({done.stderr.strip()[-200:]}): "
            "a dynamically linked interpreter and ldd are needed"
        )
    beside = {path.parent / _LOADED_BY_NAME for path in found}
    yield from sorted(found | {path for path in beside if path.exists()})


def _add_file(archive: tarfile.TarFile, packed: set[str], path: Path) -> None:
    # Links to folders are kept (/lib). Links to files become files, because a loader uses either
    # name.
    path = path.parent.resolve() / path.name
    if str(path) in packed:
        return
    try:
        file = path.open("rb")
    except OSError:
        return  # a dangling link, or unreadable for this user: the interpreter cannot use it either
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        _add_folder(archive, packed, str(path.parent))
        entry = _entry(str(path), tarfile.REGTYPE, 0o755 if status.st_mode & 0o100 else 0o644)
        entry.size = status.st_size
        entry.mtime = int(status.st_mtime)  # a compiled module records its source's time
        archive.addfile(entry, file)
    packed.add(str(path))


def _add_folder(archive: tarfile.TarFile, packed: set[str], path: str, mode: int = 0o755) -> None:
    if path == "/" or path in packed:
        return
    _add_folder(archive, packed, str(Path(path).parent))
    archive.addfile(_entry(path, tarfile.DIRTYPE, mode))
    packed.add(path)


def _add_link(archive: tarfile.TarFile, packed: set[str], path: str) -> None:
    entry = _entry(path, tarfile.SYMTYPE, 0o777)
    entry.linkname = str(Path(path).readlink())
    archive.addfile(entry)
    packed.add(path)


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode = kind, mode
    return entry


def names(client: Any) -> Iterable[str]:
    """Names of the engine's images that this module built."""
    return [tag for image in client.images(name=REPOSITORY) for tag in image["RepoTags"] or ()]

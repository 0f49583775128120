"""A base image for tests, made of this machine's programs: no registry and no network."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

NAME = "turnwise-test-host"
_PROGRAMS = (
    *(
        "bash",
        "sh",
        "cat",
        "chmod",
        "mkdir",
        "rm",
        "mv",
        "cp",
        "ls",
        "sleep",
        "id",
        "dirname",
        "tar",
    ),
    *("base64", "grep", "env", "seq", "whoami", "head", "sed", "true"),
)
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n",
    "etc/group": "root:x:0:\nagent:x:1000:\n",
}


def ensure(client: Any) -> str:
    """The name of the image. Imports it into the engine unless the engine has it."""
    if not client.images(name=f"{NAME}:latest", quiet=True):
        client.import_image_from_data(_packed(), repository=NAME, tag="latest")
    return f"{NAME}:latest"


def _packed() -> bytes:
    programs = [Path(found) for name in _PROGRAMS if (found := shutil.which(name))]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("tmp", "root", "home", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, text in _ACCOUNTS.items():
            _add(archive, name, text.encode(), 0o644)
        for program in programs:
            _add(archive, f"bin/{program.name}", program.read_bytes(), 0o755)
        for library in _libraries(programs):
            _add(archive, str(library).lstrip("/"), library.read_bytes(), 0o755)
    return buffer.getvalue()


def _libraries(programs: list[Path]) -> list[Path]:
    """The libraries that the programs load, and the loader."""
    listed = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, timeout=60, check=False
    )
    words = (line.split() for line in listed.stdout.splitlines())
    found = {Path(w[-2]) for w in words if len(w) >= 2 and w[-1].startswith("(0x")}
    return sorted(path for path in found if path.is_absolute())


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))

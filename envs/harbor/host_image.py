"""Harbor tasks whose image is this machine's own: which tasks qualify, and their files.

A task qualifies if it has no image at all, or if its Dockerfile begins with ``FROM scratch`` and
adds nothing but an export of this machine's system and files of the task below ``/app``.
"""

from __future__ import annotations

import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envs.harbor.config import Environment
from envs.harbor.tasks import HarborTask, common_refusal
from tools.references import depends_on

WORKDIR = "/app"
"""The folder in which an agent works."""
_RELEASE = "usr/lib/os-release"
"""File that names a system and its version."""
_NAMED = ("ID", "VERSION_ID")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_MAX_RELEASE = 1 << 16


class NotTheHosts(ValueError):
    """Raised for a Dockerfile that makes another image than this machine's own."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A file or folder of a task, and its path below ``/app``."""

    source: Path
    target: PurePosixPath


def refusal_with_network(task: HarborTask) -> str:
    """Why a task cannot be played in the sandbox with the network that it asks for, or ""."""
    return _refusal(task, network=True)


def refusal_without_network(task: HarborTask) -> str:
    """Why a task cannot be played in the sandbox without a network, or ""."""
    return _refusal(task, network=False)


def placed_files(environment: Path) -> list[Placed]:
    """The files of a task's folder ``environment``, and where the agent finds them.

    Raises:
        NotTheHosts: the Dockerfile makes another image than this machine's own.
    """
    dockerfile = environment / "Dockerfile"
    if not dockerfile.is_file():
        return [Placed(path, PurePosixPath(path.name)) for path in _entries(environment)]
    return list(_instructions(dockerfile))


def _refusal(task: HarborTask, *, network: bool) -> str:
    if why := common_refusal(task):
        return why
    place, verifier = task.config.environment, task.config.verifier
    if place.docker_image:
        return f"environment.docker_image ({place.docker_image}) needs a container: backend=docker"
    if verifier.separate:
        return "verifier.environment: a separate verifier needs a container: backend=docker"
    if why := _place_refusal(place):
        return why
    for name, phase in (("agent", task.config.agent), ("verifier", verifier)):
        if phase.user is not None:
            return f"{name}.user ({phase.user}): a sandbox has one user"
    if network and place.network_mode == "public":
        return (
            "environment.network_mode is public, but a sandbox has no network: set network=false "
            "to play the task without it"
        )
    try:
        placed_files(task.environment)
    except NotTheHosts as error:
        return str(error)
    return ""


def _place_refusal(place: Environment) -> str:
    if place.workdir not in (None, WORKDIR):
        return f"environment.workdir ({place.workdir}) must be {WORKDIR} in a sandbox"
    if place.healthcheck is not None:
        return "environment.healthcheck: a sandbox starts no services"
    return ""


def _instructions(dockerfile: Path) -> Iterator[Placed]:
    """The files that a Dockerfile copies."""
    depends_on(dockerfile)
    based = False
    for number, line in enumerate(dockerfile.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"environment/Dockerfile, line {number}"
        try:
            name, *words = shlex.split(line)
        except ValueError as error:
            raise NotTheHosts(f"{where}: {error}") from error
        name = name.upper()
        if not based:
            if name != "FROM" or words != ["scratch"]:
                raise NotTheHosts(f"{where}: the image is not this machine's own: {line.strip()}")
            based = True
        elif name == "ADD" and words[-1:] == ["/"] and len(words) == 2:
            _check_root(dockerfile.parent / words[0], where)
        elif name == "COPY" and len(words) >= 2 and not any(w.startswith("-") for w in words):
            yield from _copied(dockerfile.parent, words, where)
        elif name != "WORKDIR" or words != [WORKDIR]:
            raise NotTheHosts(f"{where}: a sandbox builds no image: {line.strip()}")
    if not based:
        raise NotTheHosts("environment/Dockerfile has no FROM")


def _copied(context: Path, words: list[str], where: str) -> Iterator[Placed]:
    """The files of a COPY instruction."""
    *sources, target = words
    place = PurePosixPath(WORKDIR, target)
    if ".." in place.parts or not place.is_relative_to(WORKDIR):
        raise NotTheHosts(f"{where}: {target} must be below {WORKDIR} in a sandbox")
    below = place.relative_to(WORKDIR)
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if not path.exists() or not path.is_relative_to(context.resolve()):
            raise NotTheHosts(f"{where}: {source} is not in the folder environment")
        if path.is_dir():
            yield from (Placed(entry, below / entry.name) for entry in _entries(path))
        elif target.endswith("/") or len(sources) > 1 or place == PurePosixPath(WORKDIR):
            yield Placed(path, below / path.name)
        else:
            yield Placed(path, below)


def _check_root(archive: Path, where: str) -> None:
    """Check that an archive is an export of this machine's system, by its name and version."""
    if not archive.name.endswith(_ARCHIVES) or not archive.is_file():
        raise NotTheHosts(f"{where}: {archive.name} is no archive of a system")
    depends_on(archive)
    try:
        with tarfile.open(archive) as opened:
            found = next((e for e in opened if e.name.lstrip("./") == _RELEASE and e.isreg()), None)
            file = opened.extractfile(found) if found is not None else None
            text = file.read(_MAX_RELEASE).decode(errors="replace") if file is not None else ""
        own = Path("/", _RELEASE).read_text(encoding="utf-8")
    except (OSError, tarfile.TarError) as error:
        raise NotTheHosts(f"{where}: {archive.name}: {error}") from error
    theirs, ours = _release(text), _release(own)
    if theirs != ours:
        raise NotTheHosts(
            f"{where}: {archive.name} holds {theirs or 'no system'}, and this machine is {ours}"
        )


def _release(text: str) -> str:
    """Name and version of a system, from its file os-release."""
    pairs = (line.partition("=") for line in text.splitlines())
    values = {key: value.strip("\"'") for key, _, value in pairs}
    return " ".join(values[key] for key in _NAMED if key in values)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []

"""Resources that a sandbox holds: processes, descriptors, mounts, containers, files, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sandbox.soak_programs import SYSV_KEY, mark
from tools.sandbox import SandboxUnavailable
from tools.sandbox.backends.docker import container, engine

_SET_CHILD_SUBREAPER = 36
_TOP_FOLDERS = ("/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/etc", "/usr", "/home")
_ENGINE_FOLDERS = ("/var/lib/docker/", "/run/docker/")
_CONTAINER_MOUNTS = ("overlay", "nsfs")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Census:
    """One look. The grader is this process."""

    processes: int
    """Below the grader, zombies included."""
    processes_marked: int
    """Anywhere on the machine, by the name that attacks give themselves."""
    processes_in_containers: int
    descriptors: int
    """Number of the grader's open descriptors."""
    mounts: frozenset[str]
    """Entries of the grader's mount table, without those of other containers."""
    containers: int
    cgroups: int
    """Folders named after containers of the grader, past or present."""
    files: tuple[str, ...]
    """With the grader's or the attacks' mark, and everything in the grader's TMPDIR."""
    system_v: int
    sockets: int
    """With the attacks' mark in their name."""
    rss_mb: float
    """Resident memory of the grader in MiB."""
    zygote_rss_mb: float
    """Resident memory of the grader's largest descendant in MiB."""

    def numbers(self) -> dict[str, Any]:
        """For a line of JSON."""
        return {**asdict(self), "mounts": len(self.mounts), "files": len(self.files)}

    def leaks(self, before: Census, *, closed: bool) -> list[str]:
        """Descriptions of resources that exist now but should not.

        Args:
            before: with the sandbox open and idle, or before it was opened.
            closed: whether the sandbox has been closed; else its idle processes are expected.
        """
        spare = 0 if closed else _IDLE_SPARE
        found = []
        for name in ("processes", "processes_in_containers"):
            if getattr(self, name) > getattr(before, name) + spare:
                found.append(f"{name}: {getattr(before, name)} -> {getattr(self, name)}")
        for name in ("descriptors", "containers", "cgroups"):
            if getattr(self, name) > getattr(before, name):
                found.append(f"{name}: {getattr(before, name)} -> {getattr(self, name)}")
        for name in ("processes_marked", "system_v", "sockets"):
            if getattr(self, name):
                found.append(f"{name}: {getattr(self, name)}")
        found += [f"mount: {line}" for line in sorted(self.mounts - before.mounts)]
        waiting = () if closed else self._waiting()
        found += [f"file: {path}" for path in self.files if path not in waiting]
        return found

    def _waiting(self) -> tuple[str, ...]:
        """The common scratch folders, and those of a few runs that wait for their jobs."""
        below = [path for path in self.files if _scratch_prefix() in path]
        return tuple(below) if len(below) <= _IDLE_FOLDERS else ()


_IDLE_SPARE = 4
"""Processes that may wait for jobs beyond those that waited at the start."""
_IDLE_FOLDERS = 16


def adopt_orphans() -> None:
    """Whatever escapes its sandbox and loses its parent becomes a child of this process."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


@dataclass
class Counter:
    """Takes censuses, and remembers every container of the grader that it has seen."""

    mounts: Path = Path("/proc/self/mountinfo")
    containers: set[str] = field(default_factory=set)

    def take(self) -> Census:
        """Look now."""
        own, others = _containers()
        self.containers |= {one["Id"] for one in own}
        below = list(_below(os.getpid()))
        inside = [pid for one in own for pid in (one["Pid"], *_below(one["Pid"])) if pid]
        return Census(
            processes=len(below),
            processes_marked=_marked_processes(),
            processes_in_containers=len(inside),
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            mounts=frozenset(_mounts(self.mounts, others)),
            containers=len(own),
            cgroups=sum(path.name in self.containers for path in _CGROUPS.glob("*/docker/*")),
            files=tuple(_files()),
            system_v=_system_v(),
            sockets=Path("/proc/net/unix").read_text().count(mark()),
            rss_mb=_rss_mb(os.getpid()),
            zygote_rss_mb=max(map(_rss_mb, [*below, *inside]), default=0.0),
        )


def _below(root: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{root}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _below(child)


def _marked_processes() -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += path.read_bytes().startswith(mark().encode())
    return count


def _rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def _containers() -> tuple[list[dict[str, Any]], bool]:
    """The grader's containers with their first process, and whether there is an engine at all."""
    import docker.errors

    try:
        client = engine.connect()
    except SandboxUnavailable:
        return [], False
    own = []
    try:
        label = f"{container.OWNER_LABEL}={container.owner(os.getpid())}"
        for one in client.containers(all=True, filters={"label": label}):
            with contextlib.suppress(docker.errors.NotFound):
                found = client.inspect_container(one["Id"])
                own.append({"Id": one["Id"], "Pid": found["State"]["Pid"]})
    finally:
        client.close()
    return own, True


def _mounts(table: Path, with_engine: bool) -> Iterator[str]:
    """Mount points and kinds. An engine mounts for everybody's containers: see ``cgroups``.

    Its folders may lie anywhere. What it mounts there are layers and networks of containers.
    """
    for line in table.read_text().splitlines():
        fields = line.split()
        place, kind = fields[4], fields[fields.index("-") + 1]
        of_a_container = kind in _CONTAINER_MOUNTS or place.startswith(_ENGINE_FOLDERS)
        if with_engine and of_a_container:
            continue
        yield f"{place} ({kind})"


def _scratch_prefix() -> str:
    return f"turnwise-sandbox-{os.getpid()}-"


def _files() -> Iterator[str]:
    for folder in map(Path, _TOP_FOLDERS):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if mark() in path.name:
                    yield str(path)
                elif path.name.startswith(_scratch_prefix()):
                    yield str(path)
                    yield from (str(inner) for inner in path.iterdir())
    yield from (str(path) for path in Path(os.environ["TMPDIR"]).iterdir())


def _system_v() -> int:
    key = str(SYSV_KEY + os.getpid())
    count = 0
    for path in Path("/proc/sysvipc").iterdir():
        count += sum(line.split()[0] == key for line in path.read_text().splitlines()[1:])
    return count

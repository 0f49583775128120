"""Where a run happens: its namespaces and mounts, or its folder."""

# Plain os calls: relative to the working directory, and once per run.
# ruff: noqa: PTH101, PTH102, PTH106, PTH116

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config

SANDBOX_ID = 1000
"""The user and group id of everything inside namespaces."""
PRIVATE_FOLDER = "/tmp"
"""The folder of a run that has a file system of its own."""
MAX_FILES = 4096
"""Files and folders that a run may have at once."""
_SHARED_MEMORY_MB = 16
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEIGHBOUR_TASKS = 32
"""Slack for tasks that the same user starts elsewhere after a run's limit was set."""


@dataclass(frozen=True)
class Place:
    """The folder a run works in, and the user it works as."""

    folder: str
    uid: int | None
    """None: the uid stays as it is."""
    private: bool
    """True: a file system of its own, which vanishes with the run."""


def enter_namespaces(config: Config) -> None:
    """Make a fresh /tmp, /dev/shm and /proc, then give up every capability.

    The caller is process 1 of new pid, mount and user namespaces.
    """
    kernel.die_with_parent()
    # A process that is not dumpable may not write its own id maps.
    kernel.set_dumpable(True)
    ids = b"%d %d 1" % (SANDBOX_ID, config.user_id)
    for file, text in (
        ("/proc/self/setgroups", b"deny"),
        ("/proc/self/uid_map", ids),
        ("/proc/self/gid_map", ids),
    ):
        try:
            fd = os.open(file, os.O_WRONLY)
        except FileNotFoundError:
            raise RuntimeError(
                f"this kernel has no {file}: its user namespaces are incomplete, as gVisor's are"
            ) from None
        os.write(fd, text)
        os.close(fd)
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    own = b"size=%dm,nr_inodes=%d,mode=0700" % (config.disk_mb, MAX_FILES)
    kernel.mount(b"tmpfs", PRIVATE_FOLDER.encode(), safe, own)
    shared = b"size=%dm,nr_inodes=256,mode=0700" % _SHARED_MEMORY_MB
    kernel.mount(b"tmpfs", b"/dev/shm", safe | kernel.MS_NOEXEC, shared)
    # /dev/full reads the same and cannot be mapped: no limit bounds memory shared by /dev/zero.
    kernel.show_instead(b"/dev/full", b"/dev/zero")
    for folder in config.hidden:
        empty = b"size=4k,nr_inodes=1,mode=0555"
        kernel.mount(b"tmpfs", folder.encode(), safe | kernel.MS_RDONLY, empty)
    kernel.mount(b"proc", b"/proc", safe | kernel.MS_NOEXEC | kernel.MS_RDONLY, b"subset=pid")
    kernel.drop_capabilities()
    kernel.set_dumpable(False)


class OutOfMemoryScore:
    """What the kernel, out of memory, goes by: programs come before those who watch them.

    Made before the run has a /proc of its own, in which nobody may write.
    """

    def __init__(self) -> None:
        kernel.set_dumpable(True)
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        kernel.set_dumpable(False)
        self._own = os.read(self._fd, 16)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Whoever is forked meanwhile comes first."""
        os.write(self._fd, b"1000")
        yield
        os.write(self._fd, self._own)
        os.close(self._fd)


def make_place(config: Config) -> Place:
    """The run's own folder: the private /tmp, or a fresh one below the scratch folder."""
    if config.isolation == "namespaces":
        return Place(PRIVATE_FOLDER, uid=None, private=True)
    os.setsid()
    kernel.adopt_orphans()
    folder = f"{config.scratch}/{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    uid = None
    if config.uids:
        uid = config.first_uid + os.getpid() % config.uids
        os.chown(folder, uid, uid)
    return Place(folder, uid=uid, private=False)


def remove_place(place: Place) -> None:
    """Delete the folder of a run whose processes are all dead."""
    if not place.private:
        remove_tree(place.folder)


def remove_tree(path: str) -> None:
    """Delete a folder in which nobody is at work, whatever its modes; links are not followed.

    By descent, not by path: a tree may be deeper than the longest path.

    Raises:
        OSError: somebody is at work in there, or was faster.
    """
    here = os.open(path, _ENTER)
    try:
        below: list[tuple[str, tuple[int, int], list[str]]] = [("", _identity(here), _empty(here))]
        while below:
            name, _, folders = below[-1]
            if folders:
                inner = folders.pop()
                here = _moved(here, inner)
                below.append((inner, _identity(here), _empty(here)))
                continue
            below.pop()
            if below:
                here = _moved(here, "..")
                if _identity(here) != below[-1][1]:  # moved: what is above may be anybody's
                    raise BlockingIOError(f"{path}: somebody moves folders in there")
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(path)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _moved(here: int, name: str) -> int:
    there = os.open(name, _ENTER, dir_fd=here)
    os.close(here)
    return there


def _empty(folder: int) -> list[str]:
    """Delete the files of an open folder; the names of its folders, made enterable."""
    os.fchmod(folder, stat.S_IRWXU)
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _make_enterable(entry.name, folder)
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


def _make_enterable(name: str, folder: int) -> None:
    """Give a folder all rights of its owner, and nothing else: a link there now is not followed."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)  # by name, chmod would follow
    finally:
        os.close(held)


def task_limit(config: Config) -> int:
    """RLIMIT_NPROC for the run: how many tasks its user may have, as the kernel counts them."""
    if config.isolation == "namespaces":
        return config.processes + 1  # the warden is of the same user and namespace
    if config.uids:
        return config.processes
    slack = _NEIGHBOUR_TASKS + 4 * (os.cpu_count() or 1)
    return _tasks_of(os.getuid()) + slack + config.processes


def _tasks_of(uid: int) -> int:
    total = 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            try:
                status = os.stat(f"/proc/{entry.name}/task")
            except (FileNotFoundError, PermissionError):
                continue
            if status.st_uid == uid:
                total += status.st_nlink - 2
    return total

"""Makes, measures and removes the working directory of a run."""

# Plain os calls: relative to a folder's descriptor, and once per run.
# ruff: noqa: PTH101, PTH102, PTH106

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config

PRIVATE_FOLDER = "/tmp"
"""Path of the working directory of a run that has a private file system."""
MAX_FILES = 4096
"""Maximum number of files and folders that a run can have at the same time."""
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_COARSE_NS = 20_000_000
"""Nanoseconds by which a file's modification time can lag behind the clock."""
_MAX_OPENED = 100
"""Maximum number of folders open at the same time: nested folders with unread siblings."""


@dataclass(frozen=True)
class WorkDir:
    """The working directory of a run, and the user as which it runs."""

    folder: str
    uid: int | None
    """User id of the run, or None to keep the current one."""
    private: bool
    """Whether the run has a private file system, which vanishes when the run ends."""


def make_workdir(config: Config) -> WorkDir:
    """Make the working directory of a run: its private /tmp, or a folder in the scratch folder."""
    if config.isolation == "namespaces":
        return WorkDir(PRIVATE_FOLDER, uid=None, private=True)
    os.setsid()
    kernel.adopt_orphans()
    folder = f"{config.scratch}/{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    uid = None
    if config.uids:
        uid = config.first_uid + os.getpid() % config.uids
        os.chown(folder, uid, uid)
    return WorkDir(folder, uid=uid, private=False)


def remove_workdir(workdir: WorkDir) -> None:
    """Delete the folder of a run whose processes are all dead."""
    if not workdir.private:
        remove_tree(workdir.folder)


def remove_tree(path: str) -> None:
    """Delete a folder that no process changes, whatever its modes. Links are not followed.

    The function descends into folders instead of using paths, because a tree may be deeper than the
    longest path.

    Raises:
        OSError: another process changes or deletes the folder.
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
                if _identity(here) != below[-1][1]:  # moved: its new parent may be any folder
                    raise BlockingIOError(f"{path}: another process moves folders in there")
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
    """Delete the files in an open folder.

    Make the folders in it enterable and return their names.
    """
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
    """Give the owner all rights to a folder. A link in place of the folder is not followed."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)  # by name, chmod would follow a link
    finally:
        os.close(held)


def free_bytes(folder: str) -> int:
    """Free bytes of the file system of ``folder``; 0 if it has no limit."""
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


def disk_use(folder: str) -> tuple[int, int, bool]:
    """Bytes on disk and number of entries below ``folder``. Counting stops beyond ``MAX_FILES``.

    The third value is whether the numbers are certain: no folder changed during the measurement.
    Otherwise a file that is renamed all the time can be missing from every list.
    """
    before_ns = time.time_ns() - _COARSE_NS
    size, count, names, unread = _listed(top := os.open(folder, _ENTER), before_ns)
    certain = not unread
    opened = [(top, names)]
    try:
        while opened and count <= MAX_FILES and len(opened) < _MAX_OPENED:
            here, names = opened[-1]
            if not names:
                os.close(opened.pop()[0])
                continue
            try:
                inner = os.open(names.pop(), _ENTER, dir_fd=here)
            except PermissionError:
                return size, MAX_FILES + 1, True  # the folder cannot be measured
            except OSError:
                certain = False  # it was renamed
                continue
            if not names:  # a deep tree needs few descriptors
                os.close(opened.pop()[0])
            opened.append((inner, []))
            more, number, names, unread = _listed(inner, before_ns)
            opened[-1] = inner, names
            size, count, certain = size + more, count + number, certain and not unread
        return size, MAX_FILES + 1 if opened else count, certain
    finally:
        for fd, _ in opened:
            os.close(fd)


def _listed(folder: int, before_ns: int) -> tuple[int, int, list[str], bool]:
    """Bytes of the entries, their number, and the names of the folders in an open folder.

    The fourth value is whether an entry vanished, or the folder has changed since ``before_ns``.
    """
    size = count = 0
    names = []
    vanished = False
    with os.scandir(folder) as entries:
        for entry in entries:
            count += 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                vanished = True
                continue
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return size, count, names, vanished or os.fstat(folder).st_mtime_ns >= before_ns

"""A control group (version 2) for each zygote, where this process may make one.

It bounds memory and tasks of all runs of the zygote together, and counts what no other limit sees,
the kernel's own memory above all. Nothing needs it: where no group is delegated, limits and the
watchdog hold alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "turnwise-sandbox-"
"""Of a group's name; its owner's pid namespace and its process id there follow."""
_MEMORY_SHARE = 0.75
"""Of this machine's, for all runs of a zygote together."""
_PLACES = 512
"""Runs and sessions for which a group has tasks enough, each with its own limit."""
_CONTROLLERS = {"memory", "pids"}


class Group:
    """A group, or none. ``entry`` and ``events`` are descriptors for the zygote, -1 for none.

    Whoever writes "0" to ``entry`` is in the group, with all that it forks from then on; ``events``
    tells how many processes were killed for lack of memory.

    Args:
        folder: where to make it; None: no group.
        processes: that a run may have.
    """

    def __init__(self, folder: Path | None, processes: int) -> None:
        self.entry = self.events = -1
        self._folder = folder
        if folder is None:
            return
        folder.mkdir()
        try:
            pages = int(_MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES"))
            (folder / "memory.max").write_text(str(pages * os.sysconf("SC_PAGE_SIZE")))
            (folder / "pids.max").write_text(str(_PLACES * (processes + 1)))
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap
                (folder / "memory.swap.max").write_text("0")
            self.entry = os.open(folder / "cgroup.procs", os.O_WRONLY)
            self.events = os.open(folder / "memory.events", os.O_RDONLY)
        except BaseException:
            self._close()
            self.remove()
            raise

    @property
    def descriptors(self) -> list[int]:
        """What the zygote inherits."""
        return [fd for fd in (self.entry, self.events) if fd >= 0]

    @property
    def enforced_by(self) -> str:
        """What holds the limits of those that should be in the group: whether they are is seen."""
        used = self._folder is not None and bool((self._folder / "cgroup.procs").read_text())
        return "rlimit+watchdog per run, cgroup in total" if used else "rlimit+watchdog"

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[None]:
        """While the zygote is started, which has the descriptors after; else the group goes."""
        try:
            yield
        except BaseException:
            self.remove()
            raise
        finally:
            self._close()

    def _close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)
        self.entry = self.events = -1

    def remove(self) -> bool:
        """Remove it; False while processes are in it."""
        if self._folder is not None:
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                return False
        return True


def make(processes: int) -> Group:
    """A new group for a zygote whose runs may have so many processes, if one can be made.

    Groups that ended trainers left are removed.
    """
    parent = _parent()
    if parent is not None:
        _sweep(parent)
        name = f"{_PREFIX}{_pid_namespace()}-{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # not delegated after all
            return Group(parent / name, processes)
    return Group(None, processes)


def _parent() -> Path | None:
    """The folder of this process's group, or the one above it, if groups with limits go there."""
    own = [
        line.removeprefix("0::/")
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::/")
    ]
    mount = _mount()
    if not own or mount is None:
        return None
    group = mount / own[0]
    for folder in (group, group.parent):
        if folder != mount.parent and os.access(folder, os.W_OK) and _has_controllers(folder):
            return folder
    return None


def _mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        if after.startswith("cgroup2 ") and root == "/":
            return Path(place)
    return None


def _has_controllers(folder: Path) -> bool:
    """Whether groups in ``folder`` are limited; they are made so where the kernel lets us.

    It does not in a group that has processes of its own.
    """
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if not set(control.read_text().split()) >= _CONTROLLERS:
            control.write_text("+memory +pids")
        return True
    return False


def _sweep(parent: Path) -> None:
    """Remove the groups of owners that are gone. One that has processes stays.

    So do those of other pid namespaces, as containers that share the parent have: whether their
    owners live cannot be known from here.
    """
    for folder in parent.glob(f"{_PREFIX}{_pid_namespace()}-*"):
        owner = folder.name.split("-")[-2]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino

"""A control group (cgroup version 2) for each zygote, if this process is allowed to create one.

The group limits memory and tasks of all runs of the zygote together. It counts memory that no other
limit counts, above all kernel memory. The group is optional: without a delegated group, only the
limits of each run and the watchdog apply.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "turnwise-sandbox-"
"""Prefix of a group's name. After it come the pid namespace and the process id of the group's
owner."""
_MEMORY_SHARE = 0.75
"""Fraction of this machine's memory that all runs of a zygote together can use."""
_MAX_RUNS = 512
"""Number of runs and sessions for which the group's task limit suffices, even if each of them uses
its own full limit."""
_CONTROLLERS = {"memory", "pids"}


class Group:
    """A zygote's control group, or a stand-in if there is none.

    ``entry`` and ``events`` are descriptors for the zygote, or -1 if there is no group. A process
    that writes "0" to ``entry`` enters the group; its later children are then in the group too.
    ``events`` counts the processes that the kernel killed for lack of memory.

    Args:
        folder: folder of the new group, or None for no group.
        processes: limit of processes of one run.
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
            (folder / "pids.max").write_text(str(_MAX_RUNS * (processes + 1)))
            with contextlib.suppress(FileNotFoundError):  # the kernel has no swap
                (folder / "memory.swap.max").write_text("0")
            self.entry = os.open(folder / "cgroup.procs", os.O_WRONLY)
            self.events = os.open(folder / "memory.events", os.O_RDONLY)
        except BaseException:
            self._close()
            self.remove()
            raise

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that the zygote inherits."""
        return [fd for fd in (self.entry, self.events) if fd >= 0]

    @property
    def enforced_by(self) -> str:
        """Names of the mechanisms that enforce the limits.

        Includes the cgroup only if it has a process.
        """
        used = self._folder is not None and bool((self._folder / "cgroup.procs").read_text())
        return "rlimit+watchdog per run, cgroup in total" if used else "rlimit+watchdog"

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """A context in which the caller starts the zygote.

        Leaving the context closes this process's copies of the descriptors. If the start raises,
        leaving also removes the group.
        """
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
        """Remove the group. Returns False if the group still has processes."""
        if self._folder is not None:
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                return False
        return True


def make(processes: int) -> Group:
    """Make a group for a zygote, if this process is allowed to.

    Also removes the groups whose owners are dead.

    Args:
        processes: limit of processes of one run.
    """
    parent = _parent()
    if parent is not None:
        _sweep(parent)
        name = f"{_PREFIX}{_pid_namespace()}-{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # the kernel refuses it after all
            return Group(parent / name, processes)
    return Group(None, processes)


def _parent() -> Path | None:
    """The folder in which to make groups: this process's group or its parent.

    None if neither works.
    """
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
        root, mount_point = before.split()[3:5]
        if after.startswith("cgroup2 ") and root == "/":
            return Path(mount_point)
    return None


def _has_controllers(folder: Path) -> bool:
    """Whether groups in ``folder`` can have limits. Enables the needed controllers if possible.

    The kernel refuses to enable them in a group that itself has processes.
    """
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if not set(control.read_text().split()) >= _CONTROLLERS:
            control.write_text("+memory +pids")
        return True
    return False


def _sweep(parent: Path) -> None:
    """Remove the groups of dead owners. A group that has processes stays.

    Groups of other pid namespaces also stay, for example those of containers that share the parent,
    because this process cannot know whether their owners live.
    """
    for folder in parent.glob(f"{_PREFIX}{_pid_namespace()}-*"):
        owner = folder.name.split("-")[-2]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino

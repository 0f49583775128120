"""Backends without namespaces: ``landlock``, and ``unsafe-local``, which confines nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from tools.sandbox.backends import bundle, cgroup, identity, interpreter, launcher, scratch, seccomp
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.workdir import remove_tree
from tools.sandbox.limits import Limits

_MIN_LANDLOCK_ABI = 3
"""First Landlock version that can forbid truncating files (Linux 6.2)."""
_SIGNALS_ABI = 6
"""First Landlock version that can forbid signals to other processes (Linux 6.12)."""
_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/ld.so.cache", "/etc/localtime"),
)
_PREFIX = "turnwise-sandbox-"
"""Prefix of a common folder's name. The owner's process id follows."""
# User ids of runs under root: above all ids in use; or, in a container with only 65536 ids, between
# those of people and those of services.
_UID_RANGES = ((700_000, 1 << 22), (20_000, 40_000))


class LocalLauncher:
    """Starts zygotes as plain processes. Each run has its own folder below a common folder."""

    def __init__(self, python: str | None, *, confined: bool) -> None:
        self.backend = "landlock" if confined else "unsafe-local"
        self.isolation = "restricted" if confined else "none"
        self.enforced_by = "rlimit+watchdog"
        self.start_s = 30.0
        self.lost: tuple[str, ...] = ()
        self._python = python
        self._scratch: dict[int, scratch.Scratch] = {}
        """Common folders by the zygote's process id."""
        self._groups: dict[int, cgroup.Group] = {}

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start a zygote; see ``Launcher.launch``."""
        python = interpreter.find(self._python)
        confined = self.isolation == "restricted"
        abi = _landlock_abi() if confined else 0
        first_uid, uids = _own_uids(python) if confined and os.geteuid() == 0 else (0, 0)
        # A separate user id restricts signals as well.
        signals = abi >= _SIGNALS_ABI or uids > 0
        if confined and not signals:
            self.lost = (
                f"programs can send no signals, not even to themselves: Landlock {abi} of this "
                f"kernel would let them reach outside ({_SIGNALS_ABI}, of Linux 6.12, does not)",
            )
        # Mode 0711: each run can enter its own folder in there, but list none. The zygote removes
        # the common folder.
        common = scratch.make(_scratch_parent(), _PREFIX, mode=0o711)
        try:
            group = cgroup.make(limits.processes)
            config = Config(
                isolation=self.isolation,
                control_fd=control_fd,
                parent_pid=os.getpid(),
                idle=idle,
                memory_mb=limits.memory_mb,
                processes=limits.processes,
                disk_mb=limits.disk_mb,
                seccomp=seccomp.assemble(restricted=True, signals=signals).hexadecimal()
                if confined
                else (),
                landlock=abi,
                readable=(python.prefix, *_READABLE),
                scratch=str(common.path),
                first_uid=first_uid,
                uids=uids,
                group_fd=group.entry,
                group_events_fd=group.events,
            )
            with group.passed_on():
                process = _start(python, config, group, stderr_fd)
        except BaseException:
            common.path.rmdir()
            common.release()
            raise
        self._scratch[process.pid] = common
        self._groups[process.pid] = group
        return process

    def started(self, pid: int) -> None:
        """Set ``enforced_by`` when the zygote is ready.

        The zygote is in its cgroup only now.
        """
        self.enforced_by = self._groups[pid].enforced_by

    def cleared(self, pid: int) -> bool:
        """Remove the folder and the cgroup of a killed zygote; returns whether both are gone."""
        common = self._scratch[pid]
        common.release()  # if it cannot be removed now, a later sweep may remove it
        with contextlib.suppress(OSError):  # supervisors are still deleting their own folders
            remove_tree(str(common.path))
        if not self._groups[pid].remove() or common.path.exists():
            return False
        del self._scratch[pid], self._groups[pid]
        return True


def _start(
    python: interpreter.Interpreter, config: Config, group: cgroup.Group, stderr_fd: int
) -> subprocess.Popen[bytes]:
    bundle_fd = bundle.write(config)
    try:
        return subprocess.Popen(
            bundle.command(python.path, bundle_fd),
            env=launcher.ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr_fd,
            pass_fds=[config.control_fd, bundle_fd, *group.descriptors],
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(bundle_fd)


def _landlock_abi() -> int:
    """The Landlock version of this kernel.

    Raises:
        SandboxUnavailable: the version is too old.
    """
    abi = kernel.landlock_abi()
    if abi < _MIN_LANDLOCK_ABI:
        raise SandboxUnavailable(
            f"landlock: the kernel offers version {abi}, {_MIN_LANDLOCK_ABI} is needed (Linux "
            "6.2 with CONFIG_SECURITY_LANDLOCK and landlock among CONFIG_LSM)"
        )
    return abi


def _scratch_parent() -> Path:
    shared_memory = Path("/dev/shm")
    usable = shared_memory.is_dir() and os.access(shared_memory, os.W_OK | os.X_OK)
    return shared_memory if usable else Path(tempfile.gettempdir())


def _own_uids(python: interpreter.Interpreter) -> tuple[int, int]:
    """The first user id for root's runs, and the number of ids. Each run takes one id.

    Raises:
        SandboxUnavailable: root is not allowed to change the user id, or other users cannot run
            ``python``.
    """
    identity.check_may_change_user("landlock", "CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
    if not python.reachable:
        raise SandboxUnavailable(
            f"landlock: python ({python.path}) lies in a folder closed to other users, and "
            "root runs programs as one: pass python= one that all users may read"
        )
    for first, count in _UID_RANGES:
        if identity.is_mapped(first, count):
            return first, count
    raise SandboxUnavailable(
        "landlock: root needs spare user ids to run programs as (see /proc/self/uid_map): "
        "start this as another user than root"
    )

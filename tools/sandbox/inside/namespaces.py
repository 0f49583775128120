"""The namespaces and mounts of a run."""

from __future__ import annotations

import os

from tools.sandbox.inside import kernel
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.workdir import MAX_FILES, PRIVATE_FOLDER

SANDBOX_ID = 1000
"""User and group id of every process inside namespaces."""
_SHARED_MEMORY_MB = 16


def enter_namespaces(config: Config) -> None:
    """Mount a new /tmp, /dev/shm and /proc, then drop every capability.

    The caller is process 1 of new pid, mount and user namespaces.
    """
    kernel.die_with_parent()
    # A process must be dumpable to write its own id maps.
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
    if not config.zero_hidden:
        # /dev/full reads the same and cannot be mapped. No limit counts memory shared by /dev/zero.
        kernel.bind_file(b"/dev/full", b"/dev/zero")
    for folder in config.hidden:
        empty = b"size=4k,nr_inodes=1,mode=0555"
        kernel.mount(b"tmpfs", folder.encode(), safe | kernel.MS_RDONLY, empty)
    kernel.mount(b"proc", b"/proc", safe | kernel.MS_NOEXEC | kernel.MS_RDONLY, b"subset=pid")
    kernel.drop_capabilities()
    kernel.set_dumpable(False)

"""The settings of a zygote."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Settings of a zygote, the same for all of its runs."""

    isolation: str
    """"namespaces", "restricted" or "none"."""
    control_fd: int
    """SEQPACKET socket on which jobs arrive."""
    parent_pid: int
    """Process whose death ends the zygote, or 0 if the launcher ends it."""
    idle: int
    """Number of confined processes kept waiting for a job."""
    memory_mb: int
    processes: int
    disk_mb: int
    seccomp: tuple[str, ...]
    """System-call filters in hexadecimal: the filter of the zygote with its forks, and the
    additional one of a program. Empty if there are none."""
    readable: tuple[str, ...] = ()
    """Restricted only: paths that programs may read."""
    landlock: int = 0
    """Restricted only: version of Landlock to use."""
    scratch: str = ""
    """Restricted only: folder in which each run gets its own folder."""
    user_id: int = 0
    """Namespaces only: user and group of the zygote, which runs see as ``SANDBOX_ID``."""
    hidden: tuple[str, ...] = ()
    """Namespaces only: folders that each run sees empty."""
    zero_hidden: bool = False
    """Namespaces only: whether the zygote already sees /dev/full in place of /dev/zero."""
    proc_fd: int = -1
    """Namespaces only: descriptor of the zygote's own /proc, or -1 if it is not open yet."""
    control_path: str = ""
    """Containers only: path of the socket that passes the control socket."""
    token: str = ""
    """Containers only: secret to send to that socket."""
    group_fd: int = -1
    """Descriptor by which the zygote enters its cgroup, or -1 if there is none."""
    group_events_fd: int = -1
    """Descriptor with the number of processes killed for lack of memory, or -1 if there is none."""
    first_uid: int = 0
    """Restricted, as root: first user id for runs, each of which takes one, or 0 to keep the
    user."""
    uids: int = 0
    """Number of user ids, starting with ``first_uid``."""

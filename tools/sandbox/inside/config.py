"""The settings of a zygote."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Settings of a zygote, the same for all of its runs."""

    isolation: str
    """"namespaces", "restricted" or "none"."""
    control_fd: int
    """Descriptor of the SEQPACKET socket on which jobs arrive."""
    parent_pid: int
    """Id of the process whose death ends the zygote, or 0 if the launcher ends the zygote."""
    idle: int
    """Number of confined processes that wait for a job at any time."""
    memory_mb: int
    processes: int
    disk_mb: int
    seccomp: tuple[str, ...]
    """System-call filters in hexadecimal: the filter of the zygote and its forks, and the
    additional filter of a program. Empty if there are no filters."""
    readable: tuple[str, ...] = ()
    """Restricted only: paths that programs are allowed to read."""
    landlock: int = 0
    """Restricted only: version of Landlock to use."""
    scratch: str = ""
    """Restricted only: folder in which each run gets its own folder."""
    user_id: int = 0
    """Namespaces only: user and group of the zygote, which runs see as ``SANDBOX_ID``."""
    hidden: tuple[str, ...] = ()
    """Namespaces only: folders that each run sees empty."""
    zero_hidden: bool = False
    """Namespaces only: whether the zygote's /dev/zero already is /dev/full."""
    proc_fd: int = -1
    """Namespaces only: descriptor of the zygote's own /proc, or -1 if it is not open yet."""
    control_path: str = ""
    """Containers only: path of the socket over which the host passes the control socket."""
    token: str = ""
    """Containers only: secret to send to the socket at ``control_path``."""
    group_fd: int = -1
    """Descriptor by which the zygote enters its cgroup, or -1 if there is none."""
    group_events_fd: int = -1
    """Descriptor with the number of processes killed for lack of memory, or -1 if there is none."""
    first_uid: int = 0
    """Restricted and root only: first user id for runs; each run takes one id. 0 keeps the user."""
    uids: int = 0
    """Number of user ids, starting with ``first_uid``."""

"""What the processes inside are told when they start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Settings of one generation of runs, the same for all of them."""

    isolation: str
    """"namespaces", "restricted" or "none"."""
    control_fd: int
    """SEQPACKET socket on which jobs arrive."""
    parent_pid: int
    """The process whose death ends everything; 0 where the launcher sees to that."""
    idle: int
    """Confined processes kept waiting for a job."""
    memory_mb: int
    processes: int
    disk_mb: int
    seccomp: str
    """The filter in hexadecimal; empty: none."""
    readable: tuple[str, ...] = ()
    """Restricted only: folders that programs may read."""
    landlock: int = 0
    """Restricted only: the version of Landlock to use."""
    scratch: str = ""
    """Folder under which each run gets its own; unused where /tmp is private."""
    user_id: int = 0
    """Namespaces only: user and group of the zygote, which runs see as ``SANDBOX_ID``."""
    hidden: tuple[str, ...] = ()
    """Namespaces only: folders over which each run gets an empty one."""
    handover: str = ""
    """Containers only: the path of a socket at which the control socket may be had."""
    token: str = ""
    """What to say there."""
    group_fd: int = -1
    """Where the zygote enters its control group; -1: it has none."""
    group_events_fd: int = -1
    """What tells how many processes of the group were killed for lack of memory."""
    first_uid: int = 0
    """Restricted, as root: user ids from here on belong to runs, one each. 0: keep the user."""
    uids: int = 0
    """How many ids there are from ``first_uid`` on."""

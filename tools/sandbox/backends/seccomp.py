"""The system-call filter of programs, as two classic BPF programs.

Unknown calls fail with ENOSYS, known dangerous calls with EPERM. The numbers are those of x86-64;
the sandbox does not start on another architecture.

The kernel takes 0.1 ms to install the whole filter. Most of it therefore applies to the zygote,
whose forks inherit it; only the calls that confine a run have a second filter for each program.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tools.sandbox.inside.supervisor.mappings import SHARED_PIECE

_AUDIT_ARCH_X86_64 = 0xC000003E
_FIRST_UNKNOWN = 463
"""First system call number that is newer than this table. Numbers of x32 calls are larger, too."""

# struct seccomp_data: nr, arch, instruction_pointer, args[6] (low halves first).
_NR, _ARCH, _ARGS = 0, 4, 16
_LOAD, _AND = 0x20, 0x54
_JEQ, _JGE, _JSET, _RET = 0x15, 0x35, 0x45, 0x06

_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_DENY = _ERRNO | errno.EPERM
_UNKNOWN = _ERRNO | errno.ENOSYS
_NO_MEMORY = _ERRNO | errno.ENOMEM
_IGNORE = _ERRNO | 0
"""Filter action: the call returns success and has no effect."""

Instruction = tuple[int, int, int, int]

# Mounts, namespaces, other processes, kernel objects without a namespace, kernel interfaces with a
# history of privilege bugs, memory that no limit counts, and every kind of socket.
_DENIED = frozenset(
    {
        *(40, 275, 276),  # sendfile, splice, tee: data in transit keeps whole pages, uncounted
        *(29, 30, 31, 64, 65, 66, 67, 68, 69, 70, 71, 220),  # System V shm, sem, msg
        *(41, 42, 43, 49, 50, 288),  # socket, connect, accept, bind, listen, accept4
        *(101, 103),  # ptrace, syslog
        112,  # setsid: the scheduler may give each session an equal share
        *(126, 133, 134, 135, 136, 139),  # capset, mknod, uselib, personality, ustat, sysfs
        *range(153, 157),  # vhangup, modify_ldt, pivot_root, _sysctl
        *(159, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173),  # adjtimex to ioperm
        *range(174, 186),  # modules, quotactl, nfsservctl and unimplemented ones
        *(206, 207, 208, 209, 210),  # io_setup to io_cancel
        *(212, 216, 227, 236, 237, 238, 239),  # remap_file_pages, clock_settime, mempolicy
        *range(240, 247),  # POSIX message queues, kexec_load; 247 is waitid
        *(248, 249, 250, 251, 256, 259),  # keyrings, ioprio_set, migrate_pages, mknodat
        *(253, 294),  # inotify_init, inotify_init1: limited for all processes of a user together
        *(272, 278, 279, 298, 300, 301, 303, 304, 305, 308),  # unshare to setns
        *(310, 311, 312, 313, 314, 317, 319, 320, 321, 323),  # process_vm_* to userfaultfd
        *range(425, 434),  # io_uring, the mount interface
        *(438, 440, 442, 443, 444, 445, 446, 447, 448, 450),  # pidfd_getfd to mempolicy
        *range(457, 462),  # statmount, listmount, lsm attributes
    }
)

# Without private mount and user namespaces, these calls have effects outside: Landlock does not
# restrict attributes of files (chmod to inotify), and processes of one user id can tune each other.
_DENIED_RESTRICTED = frozenset(
    {
        *(90, 91, 92, 93, 94, 132, 235, 260, 261, 268, 280, 452),  # chmod, chown, utime families
        *(188, 189, 190, 197, 198, 199, 254),  # extended attributes, inotify_add_watch
        109,  # setpgid: the run stays one process group
        *(46, 307),  # sendmsg, sendmmsg: a deleted file in transit in a socket is in no process
        *(142, 144),  # sched_setparam, sched_setscheduler
    }
)

# Denied if nothing else restricts signals: kill, tkill, tgkill, the queueing calls and
# pidfd_send_signal.
_DENIED_SIGNALS = frozenset({62, 129, 200, 234, 297, 424})

# Calls with which trusted processes confine or limit a run: clone, setsid, capset, prctl, mount.
_SET_UP = frozenset({56, 112, 126, 157, 165})
_SET_UP_RESTRICTED = frozenset(
    {
        *(444, 445, 446),  # Landlock
        *(90, 91, 92, 93, 94, 260, 268, 452),  # chmod, chown: the run's folder
        *(46, 62, 109, 141, 144, 234, 424),  # sendmsg, signals, setpgid, priorities
    }
)

_NEW_NAMESPACES = 0x7E020000
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 0x2
_AF_UNIX, _STREAM, _SEQPACKET, _SOCKET_TYPE = 1, 1, 5, 0xF
# TCGETS, TCGETS2, TIOCGWINSZ, TIOCGPGRP; FIONREAD, FIONBIO; FIONCLEX, FIOCLEX. None changes a file;
# other controls do so even through a read-only descriptor.
_CONTROLS = (0x5401, 0x802C542A, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x40000
_PRIO_USER, _SUPERVISOR = 2, 1
_MSG_OOB = 1
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their FORCE forms
# SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER, SO_REUSEPORT, SO_PASSCRED, SO_RCVLOWAT, SO_RCVTIMEO and
# SO_SNDTIMEO in both forms. A packet filter, for example, would take memory of the whole machine.
_SOCKET_OPTIONS = (2, 9, 13, 15, 16, 18, 20, 21, 66, 67)
# PR_SET_PDEATHSIG and its getter, PR_GET_DUMPABLE, PR_GET_KEEPCAPS, the name of a thread (15, 16),
# PR_GET_SECCOMP, PR_CAPBSET_READ, PR_GET_TSC, PR_GET_SECUREBITS, the slack of timers (29, 30),
# subreapers (36, 37), PR_SET_NO_NEW_PRIVS and its getter, PR_GET_TID_ADDRESS, large pages (41, 42),
# the name of a mapping. Not PR_SET_DUMPABLE: the watchdog reads the descriptors of processes. Not
# PR_SET_SECCOMP and PR_FUTEX_HASH: they take memory that no limit counts.
_PROCESS_CONTROLS = (1, 2, 3, 7, 15, 16, 21, 23, 25, 27, 29, 30, 36, 37, 38, 39, 40, 41, 42)
_PR_SET_VMA = 0x53564D41
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15  # signals to any process when there is data
_FIRST_OF_LINUX = 1024
# F_DUPFD_QUERY, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, seals, F_GET_RW_HINT. Not F_SETLEASE, which blocks
# other users of the file, and not F_NOTIFY, which reveals what they read.
_FILE_CONTROLS = (1027, 1030, 1032, 1033, 1034, 1035)
_PIPE_SIZE = (1031,)


def _load_arg(index: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGS + 8 * index + 4 * high)


def _switch(actions: Mapping[int, Iterable[int]], otherwise: int) -> list[Instruction]:
    """Instructions that return the action whose values have the loaded word, else ``otherwise``."""
    cases = [(value, index) for index, values in enumerate(actions.values()) for value in values]
    jumps = [(_JEQ, len(cases) - at + index, 0, value) for at, (value, index) in enumerate(cases)]
    return [*jumps, *((_RET, 0, 0, action) for action in (otherwise, *actions))]


def _only(values: Iterable[int]) -> list[Instruction]:
    """Instructions that allow the call if the loaded word is one of ``values``, else deny it."""
    return _switch({_ALLOW: values}, _DENY)


def _no_urgent_data(flags: int) -> list[Instruction]:
    """Deny out-of-band messages, which make a socket readable for poll but give no data."""
    return [_load_arg(flags), (_JSET, 0, 1, _MSG_OOB), (_RET, 0, 0, _DENY), (_RET, 0, 0, _ALLOW)]


def _zero_only(argument: int) -> list[Instruction]:
    """Allow the call only if this 32-bit argument is 0, which means the caller itself."""
    return [
        _load_arg(argument),
        (_JEQ, 0, 1, 0),
        (_RET, 0, 0, _ALLOW),
        (_RET, 0, 0, _DENY),
    ]


def _not_the_supervisor(argument: int) -> list[Instruction]:
    """Deny the call if this 32-bit argument is 1: the supervisor's process id inside a run."""
    return [
        _load_arg(argument),
        (_JEQ, 0, 1, _SUPERVISOR),
        (_RET, 0, 0, _DENY),
        (_RET, 0, 0, _ALLOW),
    ]


_CHECKED: dict[int, list[Instruction]] = {
    # mmap: huge pages of the machine's pool are in no process's size. Anonymous shared memory may
    # be in no process's size either, so each mapping must be small and counts in full.
    9: [
        _load_arg(3),
        (_JSET, 0, 1, _MAP_HUGETLB),
        (_RET, 0, 0, _NO_MEMORY),
        (_AND, 0, 0, _MAP_SHARED | _MAP_ANONYMOUS),
        (_JEQ, 1, 0, _MAP_SHARED | _MAP_ANONYMOUS),
        (_RET, 0, 0, _ALLOW),
        _load_arg(1, high=True),
        (_JEQ, 0, 2, 0),
        _load_arg(1),
        (_JGE, 0, 1, SHARED_PIECE + 1),
        (_RET, 0, 0, _NO_MEMORY),
        (_RET, 0, 0, _ALLOW),
    ],
    16: [_load_arg(1), *_only(_CONTROLS)],  # ioctl
    # socketpair: a datagram socket could be reconnected to a path or an abstract address.
    53: [
        _load_arg(0),
        (_JEQ, 1, 0, _AF_UNIX),
        (_RET, 0, 0, _DENY),
        _load_arg(1),
        (_AND, 0, 0, _SOCKET_TYPE),
        (_JEQ, 2, 0, _STREAM),
        (_JEQ, 1, 0, _SEQPACKET),
        (_RET, 0, 0, _DENY),
        (_RET, 0, 0, _ALLOW),
    ],
    44: _no_urgent_data(3),  # sendto
    46: _no_urgent_data(2),  # sendmsg
    307: _no_urgent_data(3),  # sendmmsg
    # setsockopt: larger buffers would be kernel memory that no limit counts.
    54: [
        _load_arg(1),
        (_JEQ, 1, 0, _SOL_SOCKET),
        (_RET, 0, 0, _DENY),
        _load_arg(2),
        *_switch({_IGNORE: _BUFFER_SIZES, _ALLOW: _SOCKET_OPTIONS}, _DENY),
    ],
    56: [  # clone
        _load_arg(0),
        (_JSET, 3, 0, _NEW_NAMESPACES),
        (_AND, 0, 0, _CLONE_THREAD | _CLONE_FILES),
        (_JEQ, 1, 0, _CLONE_THREAD),  # the watchdog reads the descriptors of processes
        (_RET, 0, 0, _ALLOW),
        (_RET, 0, 0, _DENY),
    ],
    72: [  # fcntl
        _load_arg(1),
        (_JGE, 0, len(_FILE_CONTROLS) + len(_PIPE_SIZE) + 3, _FIRST_OF_LINUX),
        *_switch({_IGNORE: _PIPE_SIZE, _ALLOW: _FILE_CONTROLS}, _DENY),
        *_switch({_DENY: (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)}, _ALLOW),
    ],
    157: [_load_arg(0), *_only((*_PROCESS_CONTROLS, _PR_SET_VMA))],  # prctl
    # setpriority, sched_setparam, sched_setscheduler, sched_setaffinity: the supervisor has the
    # program's user id, and with a lower priority it would enforce limits late.
    141: [
        _load_arg(0),
        (_JEQ, 0, 1, _PRIO_USER),
        (_RET, 0, 0, _DENY),
        *_not_the_supervisor(1),
    ],
    142: _not_the_supervisor(0),
    144: _not_the_supervisor(0),
    203: _not_the_supervisor(0),
    # sync, syncfs: they would wait, unkillable, until the whole machine has written its data.
    162: [(_RET, 0, 0, _IGNORE)],
    306: [(_RET, 0, 0, _IGNORE)],
    302: _zero_only(0),  # prlimit64
    # close_range: a thread may not leave its process's table of descriptors.
    436: [
        _load_arg(2),
        (_JSET, 0, 1, _CLOSE_RANGE_UNSHARE),
        (_RET, 0, 0, _DENY),
        (_RET, 0, 0, _ALLOW),
    ],
    435: [(_RET, 0, 0, _UNKNOWN)],  # clone3: its flags are behind a pointer; libc falls back
}
_CHECKED_RESTRICTED: dict[int, list[Instruction]] = {
    # setpriority: for the caller only, not for all processes of its user.
    141: [_load_arg(0), (_JEQ, 0, 1, _PRIO_USER), (_RET, 0, 0, _DENY), *_zero_only(1)],
    203: _zero_only(0),  # sched_setaffinity
    # fallocate: it allocates faster than the watchdog measures. The C library writes instead.
    285: [(_RET, 0, 0, _ERRNO | errno.EOPNOTSUPP)],
}


class Filters(NamedTuple):
    """Two filters, each an array of ``struct sock_filter``.

    For each call, the stricter filter decides.
    """

    zygote: bytes
    """The filter of the zygote and of all its forks."""
    program: bytes
    """The additional filter of a program."""

    def hexadecimal(self) -> tuple[str, str]:
        """Both filters as text."""
        return self.zygote.hex(), self.program.hex()


def assemble(*, restricted: bool, signals: bool = True) -> Filters:
    """The filter of programs.

    Args:
        restricted: whether runs share this machine's mounts and user ids (Landlock).
        signals: whether a program can send signals. Pass False if signals can reach processes
            outside of the run.
    """
    leaves: dict[int, list[Instruction]] = {n: [(_RET, 0, 0, _DENY)] for n in _DENIED}
    leaves |= _CHECKED
    set_up = _SET_UP
    if restricted:
        leaves |= {n: [(_RET, 0, 0, _DENY)] for n in _DENIED_RESTRICTED} | _CHECKED_RESTRICTED
        set_up |= _SET_UP_RESTRICTED
    if not signals:
        leaves |= {n: [(_RET, 0, 0, _DENY)] for n in _DENIED_SIGNALS}
    everywhere = {number: leaf for number, leaf in leaves.items() if number not in set_up}
    inside = {number: leaf for number, leaf in leaves.items() if number in set_up}
    return Filters(_assemble(everywhere, unknown=_UNKNOWN), _assemble(inside, unknown=_ALLOW))


def _assemble(leaves: Mapping[int, list[Instruction]], unknown: int) -> bytes:
    """Assemble a filter. It allows each known call that has no leaf.

    Args:
        leaves: for each call number, the instructions that decide about the call (the leaf).
        unknown: action for call numbers from ``_FIRST_UNKNOWN`` on.
    """
    allow: list[Instruction] = [(_RET, 0, 0, _ALLOW)]
    ranges: list[tuple[int, list[Instruction]]] = []
    for number in range(_FIRST_UNKNOWN):
        leaf = leaves.get(number, allow)
        if not ranges or ranges[-1][1] != leaf:
            ranges.append((number, leaf))
    ranges.append((_FIRST_UNKNOWN, [(_RET, 0, 0, unknown)]))
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH_X86_64),
        (_RET, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        *_tree(ranges),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _tree(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Instructions for a binary search in ranges of calls, each with a first number and a leaf."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    left, right = _tree(ranges[:middle]), _tree(ranges[middle:])
    assert len(left) <= 255, "a conditional jump of classic BPF reaches 255 instructions"
    return [(_JGE, len(left), 0, ranges[middle][0]), *left, *right]

"""System calls that Python does not offer, for namespaces, mounts, capabilities and filters."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterable

# PyDLL keeps the interpreter lock: a raw clone with the lock released would lose it in the child.
_libc = ctypes.PyDLL(None, use_errno=True)
# Bound once here, so that no forked child has to look them up.
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long] * 6
_syscall.restype = ctypes.c_long
_mount = _libc.mount
_mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
_capset = _libc.capset
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_SECUREBITS, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 28, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_ALL_SECUREBITS_LOCKED = 0xEF
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_HEADER = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
_NO_CAPABILITIES = ctypes.create_string_buffer(struct.pack("=6I", *(0,) * 6))
_SYS_LANDLOCK = 444
_LANDLOCK_FS, _LANDLOCK_TCP, _LANDLOCK_SCOPES = 0xFFFF, 0x3, 0x3
_LANDLOCK_IOCTL = 1 << 15
LANDLOCK_EXECUTE, LANDLOCK_WRITE, LANDLOCK_READ, LANDLOCK_LIST = 0x1, 0x2, 0x4, 0x8
LANDLOCK_ALL = _LANDLOCK_FS
_LANDLOCK_OF_FILES = LANDLOCK_EXECUTE | LANDLOCK_WRITE | LANDLOCK_READ | 1 << 14 | 1 << 15
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
_MS_BIND = 0x1000


def _check(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def die_with_parent(with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel signal this process when the thread that forked it ends.

    A change of the user id cancels this.
    """
    _check(_prctl(_PR_SET_PDEATHSIG, with_signal, 0, 0, 0), "PR_SET_PDEATHSIG")


def set_dumpable(dumpable: bool) -> None:
    """Set this process's dumpable flag.

    If it is off, other processes of the same user are not allowed to inspect this process.
    """
    _check(_prctl(_PR_SET_DUMPABLE, dumpable, 0, 0, 0), "PR_SET_DUMPABLE")


def adopt_orphans() -> None:
    """Make this process the new parent of each descendant whose parent dies."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def no_new_privileges() -> None:
    """Prevent this process from gaining privileges by executing a file."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def clone_into_namespaces() -> int:
    """Fork. The child is process 1 of new pid, mount and user namespaces.

    The new user namespace gives only the child the right to mount. The caller needs no capability.
    """
    return _clone(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNS, "clone into new namespaces")


def clone_as_sibling() -> int:
    """Fork. The child's parent is this process's own parent.

    Use this only in a process with one thread, because the call skips what the C library does
    around a fork, such as waiting for the memory allocator's locks.
    """
    return _clone(_CLONE_PARENT, "clone")


def _clone(flags: int, what: str) -> int:
    _before_fork()
    pid = int(_syscall(_SYS_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        _after_fork_child()
        return 0
    _after_fork_parent()
    return _check(pid, what)


def mount(kind: bytes, target: bytes, flags: int, options: bytes) -> None:
    """Mount a new file system of ``kind`` (tmpfs, proc) over ``target``."""
    if _mount(kind, target, kind, flags, options) == -1:
        _check(-1, f"mount {kind.decode()} on {target.decode()}")


def bind_file(source: bytes, target: bytes) -> None:
    """Bind-mount the file ``source`` over the file ``target``."""
    if _mount(source, target, None, _MS_BIND, None) == -1:
        _check(-1, f"show {source.decode()} at {target.decode()}")


def drop_capabilities() -> None:
    """Drop every capability permanently, including those of the bounding set."""
    _check(
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities"
    )
    capability = 0
    while _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if capability == 0:
        raise OSError(ctypes.get_errno(), "drop the capability bounding set")
    _check(_prctl(_PR_SET_SECUREBITS, _ALL_SECUREBITS_LOCKED, 0, 0, 0), "lock securebits")
    _check(_capset(_CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


def close_descriptors_from(first: int) -> None:
    """Close every descriptor >= ``first``."""
    os.closerange(first, 1 << 20)


class Filter:
    """A seccomp filter, prepared once, which any number of forked processes can install.

    Args:
        program: an array of ``struct sock_filter``.
    """

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        head = struct.pack("@HP", len(program) // 8, ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head)
        self._address = ctypes.addressof(self._head)

    def install(self) -> None:
        """Install the filter in this process, permanently."""
        result = _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address, 0, 0)
        _check(result, "install the seccomp filter")


def restrict_paths(rules: Iterable[tuple[str, int]], abi: int) -> None:
    """Confine this process to paths by Landlock. Also deny TCP, and signals to other processes.

    Args:
        rules: pairs of a path and the rights at and below this path. A path that does not exist is
            skipped.
        abi: Landlock version to use, at least 3. Version 4 adds the rule about TCP, version 5
            rights on devices, and version 6 the rule about signals.
    """
    handled = _LANDLOCK_FS if abi >= 5 else _LANDLOCK_FS & ~_LANDLOCK_IOCTL
    words = [handled, _LANDLOCK_TCP, _LANDLOCK_SCOPES][: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(words)}Q", *words))
    ruleset = _check(
        _syscall(_SYS_LANDLOCK, ctypes.addressof(attributes), 8 * len(words), 0, 0, 0),
        "landlock_create_ruleset",
    )
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _LANDLOCK_OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights & handled, fd))
        added = _syscall(_SYS_LANDLOCK + 1, ruleset, 1, ctypes.addressof(rule), 0, 0)
        os.close(fd)
        _check(added, f"landlock_add_rule {path}")
    _check(_syscall(_SYS_LANDLOCK + 2, ruleset, 0, 0, 0, 0), "landlock_restrict_self")
    os.close(ruleset)


def landlock_abi() -> int:
    """The Landlock version of this kernel, or 0 if it has none."""
    return max(0, int(_syscall(_SYS_LANDLOCK, 0, 0, 1, 0, 0)))

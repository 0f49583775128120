"""The filter, run by a classic BPF interpreter written from the kernel's documentation."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import pytest

from tools.sandbox.backends import seccomp
from tools.sandbox.backends.docker import profile
from tools.sandbox.backends.seccomp import Filters, assemble

ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, UNKNOWN, IGNORE = (0x00050000 | n for n in (errno.EPERM, errno.ENOSYS, 0))
NO_MEMORY, UNSUPPORTED = 0x00050000 | errno.ENOMEM, 0x00050000 | errno.EOPNOTSUPP
X86_64, I386 = 0xC000003E, 0x40000003


def verdict(filters: Filters, number: int, *args: int, arch: int = X86_64) -> int:
    """The verdict of the kernel: the stricter one, as a signed number the smaller one."""
    found = [verdict_of(one, number, *args, arch=arch) for one in filters]
    return min(found, key=lambda action: action - (action >> 31 << 32))


def verdict_of(program: bytes, number: int, *args: int, arch: int = X86_64) -> int:
    data = struct.pack("=IIQ6Q", number, arch, 0, *(*args, *(0,) * (6 - len(args))))
    code = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = steps = 0
    while True:
        steps += 1
        assert steps < 64, "a verdict takes few steps: the search is balanced"
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return value
        else:
            taken = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[operation]
            at += yes if taken else no


@pytest.fixture(params=[False, True], ids=["namespaces", "restricted"])
def program(request):
    return assemble(restricted=request.param)


# From the x86-64 table of the kernel (arch/x86/entry/syscalls/syscall_64.tbl).
DAILY = {
    "read": 0,
    "mmap": 9,
    "rt_sigaction": 13,
    "pipe": 22,
    "dup2": 33,
    "getpid": 39,
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "exit": 60,
    "wait4": 61,
    "kill": 62,
    "rename": 82,
    "getrlimit": 97,
    "futex": 202,
    "getdents64": 217,
    "exit_group": 231,
    "waitid": 247,
    "openat": 257,
    "pipe2": 293,
    "getrandom": 318,
    "statx": 332,
    "rseq": 334,
    "close_range": 436,
}
NEVER = {
    "shmget": 29,
    "socket": 41,
    "connect": 42,
    "bind": 49,
    "ptrace": 101,
    "chroot": 161,
    "mount": 165,
    "init_module": 175,
    "add_key": 248,
    "keyctl": 250,
    "setsid": 112,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "memfd_create": 319,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "move_mount": 429,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}


@pytest.mark.parametrize("name", DAILY)
def test_daily_calls_pass(program, name):
    assert verdict(program, DAILY[name]) == ALLOW


@pytest.mark.parametrize("name", NEVER)
def test_dangerous_calls_are_denied(program, name):
    assert verdict(program, NEVER[name]) == DENY


def test_every_number_has_a_verdict(program):
    found = {verdict(program, number) for number in range(463)}
    assert found - {UNSUPPORTED} == {ALLOW, DENY, UNKNOWN, IGNORE}
    for number in (463, 600, 0x40000000, 0x40000000 | 41, 0xFFFFFFFF):
        assert verdict(program, number) == UNKNOWN


def test_another_architecture_is_killed(program):
    assert verdict(program, 0, arch=I386) == KILL


def test_arguments_decide(program):
    assert verdict(program, 56, 0x01200011) == ALLOW  # the flags of libc's fork
    assert verdict(program, 56, 0x3D0F00) == ALLOW  # a thread
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(program, 56, flag | 17) == DENY
    assert verdict(program, 435) == UNKNOWN
    assert verdict(program, 16, 0, 0x5413) == ALLOW
    assert verdict(program, 16, 0, 0x5412) == DENY
    assert verdict(program, 16, 0, 0x40086602) == DENY  # a file's flags
    stream, datagram, seqpacket, cloexec = 1, 2, 5, 0o2000000
    assert verdict(program, 53, 1, stream | cloexec) == ALLOW
    assert verdict(program, 53, 1, seqpacket) == ALLOW
    assert verdict(program, 53, 1, datagram) == DENY
    assert verdict(program, 53, 2, stream) == DENY
    assert verdict(program, 54, 3, 1, 7) == IGNORE
    assert verdict(program, 54, 3, 1, 2) == ALLOW
    assert verdict(program, 157, 1, 9) == ALLOW
    assert verdict(program, 157, 4, 0) == DENY
    assert verdict(program, 302, 0, 7) == ALLOW
    assert verdict(program, 302, 4242, 7) == DENY
    assert verdict(program, 162) == verdict(program, 306) == IGNORE  # sync, syncfs


def test_options_and_operations_are_those_that_honest_programs_use(program):
    socket_options = {name for name in range(100) if verdict(program, 54, 3, 1, name) == ALLOW}
    assert socket_options == {2, 9, 13, 15, 16, 18, 20, 21, 66, 67}
    for name in (7, 8, 32, 33):  # the sizes of buffers
        assert verdict(program, 54, 3, 1, name) == IGNORE
    for name in (26, 27, 44, 50, 51, 52):  # SO_ATTACH_FILTER and its family
        assert verdict(program, 54, 3, 1, name) == DENY
    for level in (0, 6, 17, 41, 270, 279):  # other levels have no allowed option
        assert {verdict(program, 54, 3, level, name) for name in range(60)} == {DENY}
    operations = {op for op in range(100) if verdict(program, 157, op) == ALLOW}
    assert operations == {*(1, 2, 3, 7, 15, 16, 21, 23, 25, 27, 29, 30), *range(36, 43)}
    assert verdict(program, 157, 0x53564D41) == ALLOW  # PR_SET_VMA, which names a mapping
    for denied in (4, 22, 35, 59, 62, 78, 0x59616D61):  # 22: PR_SET_SECCOMP; 78: PR_FUTEX_HASH
        assert verdict(program, 157, denied) == DENY
    assert verdict(program, 317, 1) == DENY  # seccomp


def test_commands_of_fcntl(program):
    found = {command for command in range(2000) if verdict(program, 72, 0, command) == DENY}
    linux = {1027, *range(1030, 1036)}
    assert found == {8, 10, 15, *range(1024, 2000)} - linux
    assert verdict(program, 72, 3, 1031, 1 << 20) == IGNORE  # the size of a pipe
    assert {1024, 1026, 1040} <= found  # leases, directory notifications, delegations


def test_uncounted_memory_is_denied_or_limited_to_small_mappings(program):
    shared, private, anonymous, validate, huge = 0x1, 0x2, 0x20, 0x3, 0x40000

    def mapped(length: int, flags: int) -> int:
        return verdict(program, 9, 0, length, 3, flags, 2**64 - 1, 0)

    for flags in (shared | anonymous, validate | anonymous, shared | anonymous | 0x4000):
        assert mapped(4096, flags) == mapped(8 << 20, flags) == ALLOW
        for length in ((8 << 20) + 1, 60 << 20, 1 << 32, (1 << 32) + 4096, 2**64 - 1):
            assert mapped(length, flags) == NO_MEMORY
    for flags in (private | anonymous, shared, validate, private):  # private, or a file's
        assert mapped(1 << 40, flags) == ALLOW
        assert mapped(4096, flags | huge) == NO_MEMORY
    for number in (40, 275, 276, 278):  # sendfile, splice, tee, vmsplice
        assert verdict(program, number) == DENY


def test_no_thread_has_its_own_table_of_descriptors(program):
    thread, files, fork = 0x50F00, 0x400, 0x01200011
    assert verdict(program, 56, thread) == verdict(program, 56, fork) == ALLOW
    assert verdict(program, 56, fork | files) == ALLOW  # a process, whose descriptors /proc shows
    assert verdict(program, 56, thread & ~files) == DENY
    assert verdict(program, 436, 3, 100, 0) == verdict(program, 436, 3, 100, 4) == ALLOW
    assert verdict(program, 436, 3, 100, 2) == verdict(program, 436, 3, 100, 6) == DENY


def test_fallocate_is_denied_if_a_folder_is_watched():
    assert verdict(assemble(restricted=True), 285) == UNSUPPORTED
    assert verdict(assemble(restricted=False), 285) == ALLOW


def test_out_of_band_messages_are_denied(program):
    dontwait, oob = 0x40, 1
    for number, flags in ((44, 3), (46, 2), (307, 3)):
        arguments = [0] * 6
        arguments[flags] = dontwait | oob
        assert verdict(program, number, *arguments) == DENY
    assert verdict(program, 44, 3, 0, 0, dontwait) == ALLOW


def test_a_restricted_program_may_change_only_its_own_priority():
    program = assemble(restricted=True)
    assert verdict(program, 141, 0, 0, 5) == ALLOW
    assert verdict(program, 141, 0, 4242, 5) == DENY
    assert verdict(program, 141, 2, 0, 5) == DENY  # all processes of its user


def test_a_program_may_not_change_the_priority_of_its_supervisor():
    supervisor, child = 1, 4242
    program = assemble(restricted=False)
    assert verdict(program, 141, 0, supervisor, 19) == DENY
    assert verdict(program, 141, 2, 0, 19) == DENY  # all processes of its user
    assert verdict(program, 141, 0, child, 19) == verdict(program, 141, 0, 0, 19) == ALLOW
    for number in (142, 144, 203):
        assert verdict(program, number, supervisor) == DENY
        assert verdict(program, number, child) == verdict(program, number, 0) == ALLOW


@pytest.mark.parametrize("number", [46, 90, 91, 92, 132, 188, 109, 254, 268, 280, 307])
def test_calls_that_landlock_does_not_restrict_are_denied(number):
    assert verdict(assemble(restricted=True), number) == DENY
    assert verdict(assemble(restricted=False), number) == ALLOW


def test_a_containers_profile_denies_what_the_filter_denies():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("needs the kernel's list of calls (linux-libc-dev)")
    numbers = {}
    for line in header.read_text().splitlines():
        match line.split():
            case ["#define", name, number] if name.startswith("__NR_"):
                numbers[name.removeprefix("__NR_")] = int(number)
    rules = json.loads(profile.seccomp())["syscalls"]
    denied = {numbers.get(name) for rule in rules for name in rule["names"]}
    newer = set(seccomp._DENIED) - set(numbers.values())  # newer than the list
    needed = {numbers[name] for name in ("mount", "capset", "connect", "setsid")}
    assert set(seccomp._DENIED) - denied - newer == needed


def test_the_filter_of_signals_differs_in_signals_only():
    free, bound = (assemble(restricted=True, signals=signals) for signals in (True, False))
    for number in range(500):
        if verdict(free, number) != verdict(bound, number):
            assert number in {62, 129, 200, 234, 297, 424}
            assert verdict(bound, number) == DENY
    fcntl = {command: verdict(bound, 72, 0, command) for command in range(20)}
    assert {c for c, found in fcntl.items() if found != ALLOW} == {8, 10, 15}


@pytest.mark.parametrize("restricted", [False, True])
def test_each_call_is_decided_by_one_of_the_two_filters(restricted):
    trusted, own = assemble(restricted=restricted)
    set_up = seccomp._SET_UP | (seccomp._SET_UP_RESTRICTED if restricted else frozenset())
    arguments = [(0,) * 6, (2**32 - 1,) * 6, (1, 4, 2**31, 0x21), (0, 2**24, 0, 0x40021)]
    for number in range(600):
        for chosen in arguments:
            other = trusted if number in set_up else own
            assert verdict_of(other, number, *chosen) == ALLOW, number
    assert len(own) < len(trusted) / 2, "the filter that each run installs is the short one"

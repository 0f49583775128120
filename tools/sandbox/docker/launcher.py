"""Starts zygotes in containers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys

from tools.sandbox import bundle, interpreter, seccomp
from tools.sandbox.docker import bridge, container, engine, handover
from tools.sandbox.inside.config import Config
from tools.sandbox.limits import Limits

_USER_IDS = (20_000, 40_000)
"""First and number of ids from which each container gets one: within what any engine maps."""
_SHARED_MEMORY_MB = 16
_SOCKET_BUFFERS_MB = 27
"""Kernel memory that one process can fill with its descriptors at their default buffer size."""
_TRUSTED_MB = 256
"""For the zygote, its wardens and what waits for a job."""
_TRUSTED_TASKS = 16


class DockerLauncher:
    """Starts zygotes in containers; a run in there has namespaces of its own, as with ``bwrap``."""

    isolation: str = "namespaces"
    enforced_by = "rlimit+watchdog per run, cgroup in total"
    start_s = 90.0  # the first one packs the image

    def __init__(self, python: str | None, workers: int, runtime: str | None) -> None:
        self.backend = "docker" if runtime is None else f"docker/{runtime}"
        self._python = python
        self._workers = workers
        self._runtime = runtime

    def launch(
        self, limits: Limits, idle: int, control_fd: int, stderr_fd: int
    ) -> subprocess.Popen[bytes]:
        """See ``Launcher``."""
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
            seccomp=seccomp.assemble(restricted=False).hex(),
            user_id=user_id,
            hidden=("/sys",),
            handover=handover.PLACE,
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
                spec=self._spec(limits, idle, python, user_id),
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

    def _spec(
        self, limits: Limits, idle: int, python: interpreter.Interpreter, user_id: int
    ) -> container.Spec:
        # What all runs at once may use by their own limits: nobody's program dies for another's.
        one_run = limits.memory_mb + limits.disk_mb + _SHARED_MEMORY_MB
        one_run += limits.processes * _SOCKET_BUFFERS_MB
        return container.Spec(
            command=tuple(bundle.streamed_command(python.path)),
            user_id=user_id,
            memory_mb=self._workers * one_run + _TRUSTED_MB,
            tasks=self._workers * (limits.processes + 1) + 2 * idle + _TRUSTED_TASKS,
            runtime=self._runtime,
        )

    def cleared(self, pid: int) -> bool:
        """See ``Launcher``: everything was in the container's memory."""
        return True

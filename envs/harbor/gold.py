"""The reference solution of a Harbor task, as a policy that calls the tool ``bash``."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Sequence

from envs.harbor.config import resolved
from envs.harbor.tasks import HarborTask
from tools.calls import written
from tools.workspace.docker import pack

DONE = "Done."
_PART = 60_000
"""Number of characters of the packed solution in one call."""
_ARCHIVE = "/tmp/.solution.tar.base64"


class ReferencePolicy:
    """Unpacks a task's ``solution`` folder at ``/solution``, and runs ``solve.sh``.

    Where the agent may not write ``/solution``, the folder is ``/tmp/solution``.

    Args:
        tasks: the tasks, which the policy identifies by their instructions.
        tagged: whether calls are between tags; otherwise in Hermes's format.
        timeout_s: largest time limit of a call of ``bash`` in seconds.
    """

    def __init__(self, tasks: Sequence[HarborTask], *, tagged: bool, timeout_s: float) -> None:
        self._tasks = tasks
        self._tagged = tagged
        self._timeout_s = timeout_s
        self._actions: Iterator[str] | None = None

    def __call__(self, observation: str) -> str:
        """The next action."""
        if self._actions is None:
            self._actions = self._play(self._task(observation))
        return next(self._actions, DONE)

    def _task(self, observation: str) -> HarborTask:
        alike = [task for task in self._tasks if observation.startswith(task.instruction)]
        if not alike:
            raise LookupError("no task has this instruction")
        return max(alike, key=lambda task: len(task.instruction))

    def _play(self, task: HarborTask) -> Iterator[str]:
        if not (task.solution / "solve.sh").is_file():
            raise LookupError(f"task {task.name} has no solution/solve.sh")
        packed = base64.b64encode(pack(task.solution)).decode()
        for start in range(0, len(packed), _PART):
            sign = ">" if start == 0 else ">>"
            yield self._bash(f"printf %s {packed[start : start + _PART]} {sign}{_ARCHIVE}")
        env = resolved(task.config.solution.get("env", {}), frozenset(), f"task {task.name}")
        exports = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
        yield self._bash(
            "folder=/solution; mkdir -p $folder 2>/dev/null; [ -w $folder ] || folder=/tmp/solution"
            f"; mkdir -p $folder && base64 -d {_ARCHIVE} | tar -x -C $folder -f - && "
            f"rm {_ARCHIVE} && chmod +x $folder/solve.sh && "
            f"DEBIAN_FRONTEND=noninteractive {exports}$folder/solve.sh"
        )

    def _bash(self, command: str) -> str:
        arguments = {"command": command, "timeout": self._timeout_s}
        if self._tagged:
            return f"<bash>{json.dumps(arguments)}</bash>"
        return written("bash", arguments)

"""Ray's actors: one for each rank of the learner, each collector, and each server of the policy.

An actor runs where Ray placed it. Ray starts and ends it; what it does is what a process of one
machine does.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from agents.serving import ServerProcess
from agents.serving.orphans import Guard, shared_memory_here
from rl.cluster.deltas import Delta, applied

KEPT = 2
"""Number of versions of the weights that stay on a machine."""


async def result_of(reference: Any) -> Any:
    """The result of an actor's call, as a coroutine."""
    return await reference


def in_words(error: BaseException) -> str:
    """What failed, in one line: an actor's own error, or the first sentence of Ray's."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.partition(". ")[0] if isinstance(error, RayActorError) else last


class RankActor:
    """One rank of the learner, which computes in the actor's own process."""

    def serve(self, address: tuple[str, int], key: bytes, rank: int) -> None:
        """Answer the run's calls. The end of the connection ends this process."""
        from rl.learner.ranks.joining import join
        from rl.learner.ranks.rank import serve  # loads torch

        # Ray shows each actor its own GPU alone.
        serve(join(address, key, rank, device=0))


class CollectorActor:
    """One collector, which plays episodes in the actor's own process."""

    def serve(self, address: tuple[str, int], key: bytes, rank: int) -> None:
        """Answer the run's calls. The end of the connection ends this process."""
        from rl.collectors.process import serve
        from rl.learner.ranks.joining import join

        serve(join(address, key, rank))


class ServerActor:
    """Starts a server on the actor's machine, and ends it. The server ends with the actor."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self._process.host = ray.util.get_node_ip_address()
        self._guards: dict[Path, Guard] = {}

    async def start(self) -> tuple[str, int]:
        """Start the server. Returns where it will listen.

        Raises:
            ServerGone: it cannot be started.
        """
        await self._process.start()
        return self._process.host, self._process.port

    async def ended(self) -> str:
        """Wait until the server has ended, and return its last words."""
        await self._process.ended()
        return self._process.last_words()

    async def memory(self) -> str:
        """Which shared memory the actor sees."""
        return shared_memory_here()

    async def machine(self) -> str:
        """Ray's name for the actor's machine."""
        name: str = ray.get_runtime_context().get_node_id()
        return name

    async def stop(self) -> None:
        """Kill the server and everything that it started."""
        await self._process.stop()

    async def sees(self, path: str) -> bool:
        """Whether this machine sees a file or folder."""
        return Path(path).exists()

    async def keep(
        self, folder: str, former: str, names: Sequence[str], *contents: bytes | Delta
    ) -> bool:
        """Write the files of published weights under the path that they have at the run's machine.

        All but the newest versions in the same parent folder are removed.

        Args:
            folder: the folder.
            former: the folder of the version from which deltas were made.
            names: the files' names.
            contents: the files, or what has changed in each.

        Returns:
            Whether the files are there. They are not if this machine has no such former version.
        """
        files = [
            content if isinstance(content, bytes) else _changed(Path(former) / name, content)
            for name, content in zip(names, contents, strict=True)
        ]
        if None in files:
            return False
        path = Path(folder)
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if path.parent not in self._guards:
            self._guards[path.parent] = Guard(folder=path.parent)
        for name, file in zip(names, files, strict=True):
            (partial / name).write_bytes(file or b"")
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        versions = sorted(path.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for old in versions[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return True


def _changed(former: Path, delta: Delta) -> bytes | None:
    """The new content of a file; None if its former version is not here."""
    try:
        return applied(former.read_bytes(), delta)
    except FileNotFoundError:
        return None

"""Brings published weights to the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from rl.cluster.ray_actors import result_of, seen_here

if TYPE_CHECKING:
    from agents.serving import PublishedWeights, WeightPublisher


class Shipping:
    """Publishes weights, and brings them once to each machine that does not see their folder.

    Ray's object store sends the same bytes to all machines, also from one to the next. The files
    have the same path on every machine.

    Args:
        publisher: publishes the weights on this machine.
        within_s: seconds in which they must reach all machines.
    """

    def __init__(self, publisher: WeightPublisher, within_s: float) -> None:
        self._publisher = publisher
        self._within_s = within_s
        self._far: dict[Any, str] = {}
        """Actors of servers on machines that do not see the folder, each with its machine."""
        self._newest: Path | None = None

    def write(self, weights: Any, version: int) -> PublishedWeights:
        """Publish weights; see ``agents.serving.WeightPublisher``.

        Raises:
            OSError: they did not reach all machines in time.
        """
        published = self._publisher.write(weights, version)
        if isinstance(published, Path):
            self._newest = published
            self._bring_to_all(published)
        return published

    async def bring(self, actor: Any) -> None:
        """Bring the newest weights to the machine of a new server, and all later ones."""
        with seen_here() as path:
            if await result_of(actor.sees.remote(path)):
                return
        self._far[actor] = await result_of(actor.machine.remote())
        newest = self._newest
        if newest is not None and not await result_of(actor.sees.remote(str(newest))):
            names, contents = await asyncio.to_thread(_packed, newest)
            kept = result_of(actor.keep.remote(str(newest), names, *contents))
            await asyncio.wait_for(kept, self._within_s)

    def forget(self, actor: Any) -> None:
        """Bring no more weights to a server that ended."""
        self._far.pop(actor, None)

    def close(self) -> None:
        """Delete what is published here. The actors' ends delete the rest."""
        self._publisher.close()

    def _bring_to_all(self, folder: Path) -> None:
        """Let one actor of each machine write the files; if it ends, the next one there."""
        machines: dict[str, list[Any]] = {}
        for actor, machine in self._far.items():
            machines.setdefault(machine, []).append(actor)
        if not machines:
            return
        names, contents = _packed(folder)
        end = time.monotonic() + self._within_s
        left = list(machines.values())
        while left:
            kept = [actors[0].keep.remote(str(folder), names, *contents) for actors in left]
            left = [
                actors[1:]
                for actors, reference in zip(left, kept, strict=True)
                if not self._arrived(reference, folder, end) and actors[1:]
            ]

    def _arrived(self, reference: Any, folder: Path, end: float) -> bool:
        """Whether an actor wrote the files. An actor that has ended did not; its successor will.

        Raises:
            OSError: it took too long.
        """
        try:
            ray.get(reference, timeout=max(0.0, end - time.monotonic()))
        except RayActorError:
            return False
        except GetTimeoutError as error:
            raise OSError(
                f"{folder.name} of the weights did not reach all machines in {self._within_s:g} s "
                "(cluster.start_s)"
            ) from error
        return True


def _packed(folder: Path) -> tuple[Sequence[str], Sequence[Any]]:
    """The names of a folder's files, and their contents in Ray's object store."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path.name for path in files], [ray.put(path.read_bytes()) for path in files]

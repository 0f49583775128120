"""Brings published weights to the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from agents.serving.orphans import shared_memory_here
from rl.cluster.deltas import Delta, delta_of
from rl.cluster.ray_actors import result_of

if TYPE_CHECKING:
    from agents.serving import PublishedWeights, WeightPublisher


class Shipping:
    """Publishes weights, and brings them once to each machine that does not see their folder.

    Ray's object store sends the same bytes to all machines, also from one to the next. The files
    have the same path on every machine.

    Args:
        publisher: publishes the weights on this machine.
        within_s: seconds in which they must reach all machines.
        deltas: whether machines that have the former version get only what has changed.
    """

    def __init__(
        self, publisher: WeightPublisher, within_s: float, *, deltas: bool = False
    ) -> None:
        self._publisher = publisher
        self._within_s = within_s
        self._deltas = deltas
        self.sent_bytes = 0
        """Bytes of the newest version that were sent to each machine."""
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
            former, self._newest = self._newest, published
            self._bring_to_all(published, former)
        return published

    async def bring(self, actor: Any) -> None:
        """Bring the newest weights to the machine of a new server, and all later ones."""
        if await result_of(actor.memory.remote()) == shared_memory_here():
            return
        self._far[actor] = await result_of(actor.machine.remote())
        newest = self._newest
        if newest is not None and not await result_of(actor.sees.remote(str(newest))):
            names, contents = await asyncio.to_thread(_packed, newest)
            sent = [ray.put(content) for content in contents]
            kept = result_of(actor.keep.remote(str(newest), "", names, *sent))
            await asyncio.wait_for(kept, self._within_s)

    def forget(self, actor: Any) -> None:
        """Bring no more weights to a server that ended."""
        self._far.pop(actor, None)

    def close(self) -> None:
        """Delete what is published here. The actors' ends delete the rest."""
        self._publisher.close()

    def _bring_to_all(self, folder: Path, former: Path | None) -> None:
        """Let one actor of each machine write the files; if it ends, the next one there."""
        machines: dict[str, list[Any]] = {}
        for actor, machine in self._far.items():
            machines.setdefault(machine, []).append(actor)
        if not machines:
            return
        end, left = time.monotonic() + self._within_s, list(machines.values())
        names, contents = _packed(folder)
        if self._deltas and former is not None:
            left = self._send(left, folder, former, names, _changes(former, names, contents), end)
        self._send(left, folder, None, names, contents, end)

    def _send(
        self,
        machines: list[list[Any]],
        folder: Path,
        former: Path | None,
        names: Sequence[str],
        contents: Sequence[bytes | Delta],
        end: float,
    ) -> list[list[Any]]:
        """Send the files to machines. Returns those that lack the former version."""
        if not machines:
            return []
        self.sent_bytes = sum(map(_size, contents))
        sent, lacking = [ray.put(content) for content in contents], []
        while machines:
            left = []
            kept = [a[0].keep.remote(str(folder), str(former), names, *sent) for a in machines]
            for actors, reference in zip(machines, kept, strict=True):
                arrived = self._arrived(reference, folder, end)
                if arrived is None and actors[1:]:
                    left.append(actors[1:])
                elif arrived is False:
                    lacking.append(actors)
            machines = left
        return lacking

    def _arrived(self, reference: Any, folder: Path, end: float) -> bool | None:
        """Whether an actor wrote the files; None if it has ended, and its successor will.

        Raises:
            OSError: it took too long.
        """
        try:
            arrived: bool = ray.get(reference, timeout=max(0.0, end - time.monotonic()))
        except RayActorError:
            return None
        except GetTimeoutError as error:
            raise OSError(
                f"{folder.name} of the weights did not reach all machines in {self._within_s:g} s "
                "(cluster.start_s)"
            ) from error
        return arrived


def _packed(folder: Path) -> tuple[Sequence[str], Sequence[bytes]]:
    """The names of a folder's files, and their contents."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path.name for path in files], [path.read_bytes() for path in files]


def _changes(
    former: Path, names: Sequence[str], contents: Sequence[bytes]
) -> Sequence[bytes | Delta]:
    """What has changed in each file, or the whole file where that is no less."""
    found: list[bytes | Delta] = []
    for name, content in zip(names, contents, strict=True):
        old = former / name
        delta = delta_of(old.read_bytes(), content) if old.is_file() else None
        found.append(content if delta is None else delta)
    return found


def _size(content: bytes | Delta) -> int:
    if isinstance(content, bytes):
        return len(content)
    return content.gaps.nbytes + content.words.nbytes

"""The collectors of a run: which of them plays what, and new ones for those that were lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agents.policy import PolicyFailure
from agents.serving import ServerPolicy
from rl.cluster.child import ChildProcess
from rl.collectors.handle import CollectorHandle, CollectorLost, OnEnded
from rl.collectors.messages import CollectorSpec, PlaySettings
from rl.collectors.seconds import with_collectors
from rl.errors import RunFailure
from rl.rollout.collector import Assignment
from rl.rollout.context import EpisodeContext
from rl.rollout.episode import seed_of
from rl.rollout.trajectory import Trajectory
from rl.run.process.activity import Waiting
from tools.sandbox.health import Health

logger = logging.getLogger(__name__)
OPEN_S = 600.0
"""Seconds that a collector may take to open its environment."""
SILENT_S = 120.0
"""Seconds after which a collector that reports nothing counts as lost."""
MAX_LOSSES_IN_A_ROW = 10
"""Number of collectors that may be lost before an episode ends."""
TOGETHER, ALONE = 2, 2
"""Number of times that episodes are played before they fail because their collectors are lost: at
first beside all others, and then with no other lost ones, since one of them may end the process."""
_CHECK_S = 5.0
_HEALTH_S = 5.0

Start = Callable[[int, Path], ChildProcess]
"""Starts a collector with a number, and blocks until it is connected. A file receives what it
prints."""


class CollectorFailure(PolicyFailure):
    """Failure of an episode that was lost with its collector again and again."""


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What a run's collectors have in common."""

    size: int
    """Number of collectors."""
    start: Start
    spec: Callable[[int], CollectorSpec]
    """What the collector with a number is opened with."""
    printed: Path
    """Folder for the files with what collectors print."""
    counts_together: bool
    """Whether the sandboxes of all processes count together, because they are one server."""


class CollectorPool:
    """Started collectors, all guests of one policy.

    Args:
        settings: what they have in common.
        policy: manages the servers from which they sample.
    """

    def __init__(self, settings: PoolSettings, policy: ServerPolicy) -> None:
        self._settings = settings
        self._policy = policy
        self._handles: dict[int, CollectorHandle] = {}
        """The collectors that can play, by number."""
        self._started: set[CollectorHandle] = set()
        """Those, and the ones that are being opened."""
        self._losses = 0
        """Number of losses in a row, without an episode that ended."""
        self._alone = asyncio.Lock()
        self._failure: RunFailure | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._seconds: list[Mapping[str, float]] = []
        """Seconds of collectors that were lost, until they are taken."""
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the collectors that can play, on their machines."""
        return [handle.child.pid for handle in self._handles.values()]

    async def open(self) -> None:
        """Start all collectors, and wait until they can play.

        Raises:
            UsageError: the environment or a setting is refused.
            RunFailure: a collector does not start.
            ValueError: other processes cannot send requests to the policy's servers.
        """
        starting = [asyncio.create_task(self._start(n)) for n in range(self._settings.size)]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        self._spawn(self._watch())

    async def play(
        self,
        context: EpisodeContext,
        settings: PlaySettings,
        assignment: Assignment,
        on_ended: OnEnded,
    ) -> list[Trajectory]:
        """Play the episodes of an assignment on the collector with the fewest episodes.

        Episodes of a lost collector are played again by another one, with the same seeds. They fail
        if their collectors are lost again and again.

        Args:
            context: the environment and its options, for the record of a failed episode.
            settings: how episodes are played.
            assignment: the episodes.
            on_ended: called at the end of each episode or, with values of turns, of all.

        Raises:
            RunFailure: a collector cannot play, or was lost again and again.
        """
        ended: dict[int, Trajectory] = {}
        lost = ""
        for attempt in range(TOGETHER + ALONE):
            left = tuple(member for member in assignment.members if member not in ended)
            alone = nullcontext() if attempt < TOGETHER else self._alone
            try:
                async with alone:
                    handle = await self._idlest()
                    rest = replace(assignment, members=left)
                    made = await handle.play(settings, rest, on_ended)
            except CollectorLost as error:
                ended |= error.ended
                lost = f"{error} (attempt {attempt + 1})"
            else:
                ended |= dict(zip(left, made, strict=True))
            if len(ended) == len(assignment.members):
                break
        for member in assignment.members:
            if member not in ended:
                ended[member] = _failed(context, assignment, member, lost)
                on_ended(member, ended[member])
        return [ended[member] for member in assignment.members]

    async def healths(self) -> Mapping[tuple[str, str], Health]:
        """The counters of the collectors' services, unless they are also those of this process.

        See ``service_metrics.Elsewhere``.
        """
        if self._settings.counts_together:
            return {}
        handles = list(self._handles.values())
        found = await asyncio.gather(*(handle.health(_HEALTH_S) for handle in handles))
        return {
            (f"{handle.child.number}, process {handle.child.pid}", name): health
            for handle, healths in zip(handles, found, strict=True)
            for name, health in healths.items()
        }

    def add_seconds(self, own: Mapping[str, float]) -> dict[str, float]:
        """Seconds by lane and state, with those that collectors reported since the last call."""
        reported, self._seconds = self._seconds, []
        for handle in self._started:
            reported.append(dict(handle.seconds))
            handle.seconds.clear()
        return with_collectors(own, reported)

    def waits(self) -> list[Waiting]:
        """The activities of collectors that wait for longest, as they were reported."""
        return [
            replace(wait, name=f"{wait.name} (collector {number})")
            for number, handle in list(self._handles.items())
            for wait in handle.waits
        ]

    def num_restartable(self) -> int:
        """Number of episodes that can restart, as they were reported."""
        return sum(handle.num_restartable for handle in list(self._handles.values()))

    def restart_all(self) -> None:
        """Restart all episodes that can restart."""
        for handle in self._handles.values():
            handle.restart_all()

    async def close(self) -> None:
        """End all collectors."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for handle in self._handles.values():
            self._policy.dismiss(handle)
        self._handles.clear()
        await asyncio.gather(*(handle.close() for handle in self._started))

    async def _start(self, number: int) -> None:
        """Start a collector, and let it play when it is ready.

        Raises:
            UsageError: the environment or a setting is refused.
            RunFailure: the collector does not start.
        """
        printed = self._settings.printed / f"collector-{number}.log"
        child = await asyncio.to_thread(self._settings.start, number, printed)
        handle = CollectorHandle(child, self._policy, self._on_lost)
        self._started.add(handle)
        try:
            await handle.open(self._settings.spec(number), OPEN_S)
        except BaseException:
            self._started.discard(handle)
            child.kill()
            await handle.close()
            raise
        self._policy.admit(handle)
        self._handles[number] = handle
        self._changed.set()

    async def _idlest(self) -> CollectorHandle:
        """The collector with the fewest episodes; waits until there is one.

        Raises:
            RunFailure: a collector was lost again and again.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._handles:
                return min(self._handles.values(), key=lambda handle: handle.num_playing)
            self._changed.clear()
            await self._changed.wait()

    def _on_lost(self, handle: CollectorHandle) -> None:
        """Replace a collector that has ended."""
        number = handle.child.number
        if self._handles.get(number) is not handle or self._closed:
            return  # It was being opened, and its start reports the end.
        del self._handles[number]
        self._started.discard(handle)
        self._policy.dismiss(handle)
        self._seconds.append(dict(handle.seconds))
        self._losses = 1 if handle.num_ended else self._losses + 1
        logger.warning("%s; its episodes are played again", handle.lost)
        self._spawn(self._replace(handle))

    async def _replace(self, handle: CollectorHandle) -> None:
        number = handle.child.number
        await handle.close()
        last = handle.lost
        while self._losses <= MAX_LOSSES_IN_A_ROW:
            try:
                return await self._start(number)
            except (RunFailure, ValueError) as error:
                logger.warning("collector %d does not start again: %s", number, error)
                self._losses += 1
                last = str(error)
        self._failure = RunFailure(
            f"collectors were lost {self._losses} times while no episode ended: {last}"
        )
        self._changed.set()

    async def _watch(self) -> None:
        """End collectors that report nothing."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_CHECK_S)
            now = time.monotonic()
            suspended = now - before > 2 * _CHECK_S
            for handle in self._started:
                if suspended:
                    handle.heard_at = now
                elif now - handle.heard_at > SILENT_S and handle in self._handles.values():
                    logger.warning(
                        "collector %d said nothing for %g s, and is ended",
                        *(handle.child.number, SILENT_S),
                    )
                    handle.child.kill()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _failed(context: EpisodeContext, assignment: Assignment, member: int, lost: str) -> Trajectory:
    """The record of an episode that no collector could play."""
    trajectory = Trajectory(
        env_id=context.env_id,
        env_options=asdict(context.options),
        task=assignment.task,
        seed=seed_of(*assignment.seed_key),
        member=member,
        attempts=1,
    )
    trajectory.fail(CollectorFailure(lost, retryable=False))
    return trajectory

"""Rules about resources: time on the event loop, and what remains open after ``close``."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from envs.base.loop import loop_thread, outcome_of
from envs.base.loop_watch import held_account, watch_loop
from envs.checks.probe import Probe
from envs.play import aplay

BEAT_S = 0.005
"""Seconds between two heartbeats, which measure whether the loop is free."""
MAX_TRIES = 5
"""Number of times that an episode must block the event loop before the check fails."""
ENOUGH_S = 10.0
"""Seconds of blocking after which no further episode is played."""
CLOSING_S = 5.0
"""Seconds after ``close`` within which all resources must be released."""
_SCHEDULE = Path("/proc/thread-self/schedstat")
_LASTING = ("turnwise-envs", "turnwise-watch", "asyncio_")
"""Threads that a process keeps: the loop thread, its watch, and asyncio's pool."""


def free_loop(probe: Probe) -> Iterator[str]:
    """Check that no episode blocks the event loop for long."""
    limit_s = probe.strength.max_block_s
    probe.longest_block_s = 0.0
    for name, task in probe.pairs():
        blocks = list[float]()
        where = ""
        # Other threads, garbage collection and a virtual machine's host also delay heartbeats, but
        # hardly in each of several tries of the same few milliseconds.
        while len(blocks) < MAX_TRIES and sum(blocks) < ENOUGH_S:
            block_s, held_at = loop_thread.run(_longest_block(probe, task, name))
            blocks.append(block_s)
            where = held_at or where
            if block_s <= limit_s:
                break
            if len(blocks) == 1:
                # A process's first episode imports modules and fills caches. The try ended at the
                # first of them; a whole episode leaves none for the next ones.
                probe.play(name, task)
        probe.longest_block_s = max(probe.longest_block_s, min(blocks))
        if min(blocks) > limit_s:
            at = f", held at {where}," if where else ","
            yield (
                f"task {task}, {name}: the event loop was not free for {min(blocks) * 1000:.0f} "
                f"ms{at} in each of {len(blocks)} episodes: mark plain functions that take long "
                f"with blocking = True; in async ones await, and call blocking code by "
                f"asyncio.to_thread"
            )
            return


class _NoAccount:
    """Makes the watch of the loop observe an episode, and tasks that it creates."""

    def held(self, seconds: float) -> None:
        """Do nothing."""


async def _longest_block(probe: Probe, task: int, name: str) -> tuple[float, str]:
    """The longest delay of a heartbeat during one episode, in seconds, and its place if known.

    The episode ends at the first delay above the limit. Time in which this thread waited for a
    processor is not counted.
    """
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while longest <= probe.strength.max_block_s:
            before, queued = time.perf_counter(), _queued_s()
            await asyncio.sleep(BEAT_S)
            late = time.perf_counter() - before - BEAT_S
            longest = max(longest, late - (_queued_s() - queued))

    async def episode() -> None:
        # At least one heartbeat before the episode and one after it.
        await asyncio.sleep(2 * BEAT_S)
        held_account.set(_NoAccount())
        await aplay(env, probe.policy(name), seed=probe.seed, task=task)
        await asyncio.sleep(2 * BEAT_S)

    env, watch = probe.env.group(1)[0], watch_loop()
    watch.last = ""
    both = [asyncio.create_task(outcome_of(run)) for run in (episode(), beat())]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()()
    finally:
        for one in both:
            one.cancel()
        await asyncio.wait(both)
        await env.aclose()
    return longest, watch.last


def _queued_s() -> float:
    """Seconds that this thread has waited for a processor; 0 if the kernel does not report it."""
    try:
        return int(_SCHEDULE.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def close(probe: Probe) -> Iterator[str]:
    """Check that closing twice is harmless, spares other instances, and leaves nothing open."""
    task = probe.tasks[0]
    with probe.copies(1) as [env]:
        env.reset(seed=probe.seed)
        env.close()  # And again, as every copy is.
    before = probe.play(probe.player, task)
    if before != probe.reference(task):
        yield "after one copy was closed twice, others play differently"
    # The first round creates what a process keeps: caches, thread pools.
    _open_and_close(probe, task)
    held = _held()
    _open_and_close(probe, task)
    deadline = time.monotonic() + CLOSING_S
    while (left := _held() - held) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        yield (
            f"after close there is still {', '.join(sorted(left.elements()))}: end it after the "
            f"yield of open_services, or in close and aclose"
        )


def _open_and_close(probe: Probe, task: int) -> None:
    env = probe.build()
    try:
        observation, _ = env.reset(seed=probe.seed, options={"task": task})
        policy, over = probe.policy(probe.player), False
        while not over:
            step = env.step(policy(observation))
            observation, over = step.observation, step.done
    finally:
        env.close()


def _held() -> Counter[str]:
    """Names of this process's child processes, threads, open files and sockets.

    On systems without ``/proc``, the names of threads only.
    """
    held: Counter[str] = Counter()
    for thread in threading.enumerate():
        if not thread.name.startswith(_LASTING):
            held[f"thread {thread.name} ({thread.ident})"] += 1
    for link in _entries(Path("/proc/self/fd")):
        try:
            target = link.readlink()
        except OSError:
            continue  # The descriptor of the listing itself.
        held[f"open file {target}"] += 1
    for stat in _entries(Path("/proc")):
        if stat.name.isdigit():
            try:
                command, _, fields = (stat / "stat").read_text().rpartition(")")
            except OSError:
                continue  # The process ended in between.
            if int(fields.split()[1]) == os.getpid():
                held[f"process {stat.name} {command.partition('(')[2]}"] += 1
    return held


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []

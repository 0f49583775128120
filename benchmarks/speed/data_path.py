"""Seconds from the episodes of a step to its advantages, and how long the event loop is held.

    python -m benchmarks.speed.data_path [episodes] [tokens] [results.json]

An episode has turns of 512 context tokens and 512 sampled tokens; by default a step has 512
episodes of 32,768 tokens. The benchmark goes through a step as ``rl.train`` does, with short
garbage collections as in its process: it appends and checks the episodes on the event loop. In
threads it computes their metrics, writes and reads their files, encodes the stream's state for a
checkpoint, and makes the batch and GRPO's advantages. Meanwhile the loop counts its longest pause.
Prints one line of JSON, and writes it to the file: seconds for a million tokens of each part, the
longest pauses, and the files' sizes. ``cpu`` is the time of a CPU that the process used: on a busy
machine, ``wall`` also counts the time of others. The loop itself beats all the time, which is part
of ``cpu`` in parts that a thread computes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.rollout.async_rollouts import Slot, Snapshot
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import read_trajectories, tokens_path, write_trajectories
from rl.run.folder import versions
from rl.run.metrics.episodes import rollout_metrics, staleness_metrics
from rl.run.process.host import COMMAND

CONTEXT, SAMPLED, GROUP = 512, 512, 8
VOCABULARY = 151_936


class Pauses:
    """The longest times in which the event loop ran nothing else, by two clocks."""

    def __init__(self) -> None:
        self.longest = (0.0, 0.0)
        self._last = _clocks()

    def _beat(self) -> None:
        self._note()
        self._next = asyncio.get_running_loop().call_soon(self._beat)

    def _note(self) -> None:
        now = _clocks()
        passed = (now[i] - self._last[i] for i in range(2))
        wall, cpu = (max(pair) for pair in zip(self.longest, passed, strict=True))
        self.longest, self._last = (wall, cpu), now

    async def during(self, work: Awaitable[Any]) -> Any:
        """The result of ``work``; counts the pauses meanwhile."""
        self.longest, self._last = (0.0, 0.0), _clocks()
        self._next = asyncio.get_running_loop().call_later(0.001, self._beat)
        try:
            return await work
        finally:
            self._note()
            self._next.cancel()


def _clocks() -> tuple[float, float]:
    """Seconds, and seconds of a CPU that this process used."""
    return time.perf_counter(), time.process_time()


def completions(count: int) -> list[tuple[list[int], Completion]]:
    """Turns as a policy and a renderer make them; episodes share them."""
    drawn = np.random.default_rng(0)
    made = []
    for _ in range(count):
        words = drawn.integers(VOCABULARY, size=CONTEXT + SAMPLED).tolist()
        logprobs = (-drawn.exponential(0.7, SAMPLED).astype(np.float32)).tolist()
        sampled = tuple(words[CONTEXT:]), tuple(logprobs), (3,) * SAMPLED
        made.append((words[:CONTEXT], Completion(*sampled, FinishReason.STOP_TOKEN)))
    return made


async def play(turns: list[tuple[list[int], Completion]], member: int) -> Trajectory:
    """An episode that is appended turn by turn, with room for the loop in between."""
    segment, record = Segment(), Trajectory("bench-v0", {}, member // GROUP, 0, member % GROUP)
    for number, (context, completion) in enumerate(turns):
        segment.append_context(context, number)
        segment.append_completion(completion, number)
        rewards = {"right": float(member % 3 == 0)}
        record.turns.append(Turn("text " * 400, "text " * 400, "stop_token", SAMPLED, rewards))
        await asyncio.sleep(0)
    record.segments, record.terminated, record.outcome = [segment], True, 0.5
    record.check()
    await asyncio.sleep(0)
    return record


async def measure(episodes: int, tokens: int, folder: Path) -> dict[str, Any]:
    """All parts of a step, one after the other."""
    pauses = Pauses()
    parts: dict[str, dict[str, float]] = {}
    longest: dict[str, dict[str, float]] = {}
    millions = episodes * tokens / 1e6

    async def part(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began = _clocks()
        result = await pauses.during(work())
        taken = [(now - then) / millions for now, then in zip(_clocks(), began, strict=True)]
        parts[name] = dict(zip(("wall", "cpu"), taken, strict=True))
        longest[name] = dict(zip(("wall", "cpu"), pauses.longest, strict=True))
        return result

    async def collect() -> list[TrajectoryGroup]:
        turns = completions(tokens // (CONTEXT + SAMPLED))
        played = [await play(turns, member) for member in range(episodes)]
        return [TrajectoryGroup(played[i : i + GROUP]) for i in range(0, episodes, GROUP)]

    def learn() -> None:
        assign_credit(ALGORITHMS["grpo"], Batch.from_groups(groups))

    def metrics() -> None:
        rollout_metrics(groups)
        staleness_metrics([t for group in groups for t in group.finished], 4)

    path = folder / "step-000001.jsonl.gz"
    groups: list[TrajectoryGroup] = await part("append_and_check", collect)
    await part("metrics", lambda: asyncio.to_thread(metrics))
    await part("write", lambda: asyncio.to_thread(write_trajectories, path, groups))
    slots = [Slot(n, [n], 0, [group], done=True) for n, group in enumerate(groups)]
    snapshot = Snapshot(len(slots), slots)
    await part("stream_state", lambda: asyncio.to_thread(snapshot.state_dict))
    await part("checks_batch_credit", lambda: asyncio.to_thread(learn))
    back = await part("read", lambda: asyncio.to_thread(read_trajectories, path))
    assert back == [t for group in groups for t in group.trajectories]
    return {
        "episodes": episodes,
        "tokens": tokens,
        "seconds_per_million": parts,
        "longest_pause_s": longest,
        "bytes_per_token": {
            "lines": path.stat().st_size / (millions * 1e6),
            "tokens": tokens_path(path).stat().st_size / (millions * 1e6),
        },
    }


async def _measured(episodes: int, tokens: int, folder: Path) -> dict[str, Any]:
    async with COMMAND.short_collections():
        return await measure(episodes, tokens, folder)


def main() -> None:
    words = sys.argv[1:]
    out = Path(words.pop()) if words and words[-1].endswith(".json") else None
    episodes, tokens = (int(word) for word in [*words, *("512", "32768")[len(words) :]])
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measured(episodes, tokens, Path(folder)))
    found |= {"load": os.getloadavg()[0], "versions": versions()}
    print(json.dumps(found))
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

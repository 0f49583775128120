"""Rules about consecutive and concurrent episodes, which must not affect one another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from envs.base.loop import loop_thread
from envs.checks.probe import AnyEnv, Probe
from envs.episode import StepResult
from envs.play import Played, aplay, play


def no_leak(probe: Probe) -> Iterator[str]:
    """Check that earlier episodes of the same environment do not affect an episode."""
    for task in probe.tasks:
        for name in probe.spam():
            with probe.copies(1) as [used]:
                before = aplay(used, probe.policy(name), seed=probe.seed + 1, task=probe.tasks[0])
                loop_thread.run(before)
                again = aplay(used, probe.policy(probe.player), seed=probe.seed, task=task)
                after = loop_thread.run(again)
            if after != probe.reference(task):
                yield (
                    f"task {task}: an episode of {name} changes the next one: begin must reset all "
                    f"of self.state, and turn must change nothing else"
                )


def group(probe: Probe) -> Iterator[str]:
    """Check that the copies of a group start equal and do not affect one another."""

    async def beside(quiet: AnyEnv, loud: AnyEnv, played: Played) -> list[StepResult]:
        await quiet.areset(seed=probe.seed, options={"task": played.info["task"]})
        steps, over = list[StepResult](), True
        for action in played.actions:
            if over:
                await loud.areset(seed=probe.seed + 1)
            over = (await loud.astep("")).done
            steps.append(await quiet.astep(action))
        return steps

    for task in probe.tasks:
        with probe.copies(3) as members:
            starts = [env.reset(seed=probe.seed, options={"task": task}) for env in members]
        if any(start != starts[0] for start in starts):
            yield f"task {task}: members of a group start differently"
        played = probe.reference(task)
        with probe.copies(2) as [quiet, loud]:
            if loop_thread.run(beside(quiet, loud, played)) != list(played.steps):
                yield (
                    f"task {task}: an episode changes another that runs beside it: keep an "
                    f"episode's data in self.state"
                )


def interleaved(probe: Probe) -> Iterator[str]:
    """Check that episodes interleaved in one event loop equal the same episodes played alone."""
    count = probe.strength.num_interleaved
    chosen = list(islice(cycle(probe.pairs()), count))
    alone = [probe.alone(name, task) for name, task in chosen]

    async def together(members: list[AnyEnv]) -> list[Played]:
        games = [
            aplay(env, probe.policy(name), seed=probe.seed, task=task)
            for env, (name, task) in zip(members, chosen, strict=True)
        ]
        return await asyncio.gather(*games)

    with probe.copies(count) as members:
        played = loop_thread.run(together(members))
    yield from _differences(chosen, played, alone, f"among {count} in one loop")


def threads(probe: Probe) -> Iterator[str]:
    """Check that episodes in concurrent threads equal the same episodes played alone.

    The threads use the synchronous API.
    """
    count = probe.strength.num_threads
    chosen = list(islice(cycle(probe.pairs()), count))
    alone = [probe.alone(name, task) for name, task in chosen]
    played: list[Played | Exception | None] = [None] * count
    start = threading.Barrier(count)

    def run(index: int, env: AnyEnv) -> None:
        name, task = chosen[index]
        try:
            policy = probe.policy(name)
            start.wait(timeout=60)
            played[index] = play(env, policy, seed=probe.seed, task=task)
        # The environment is foreign code: whatever it raises is a finding.
        except Exception as error:
            played[index] = error

    limit_s = probe.env.options.step_timeout_s
    deadline = time.monotonic() + limit_s
    with probe.copies(count) as members:
        workers = [
            threading.Thread(target=run, args=member, name="turnwise-check", daemon=True)
            for member in enumerate(members)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    where = f"in one of {count} threads"
    for (name, task), one in zip(chosen, played, strict=True):
        if one is None:
            yield f"task {task}, {name}: {where} it is not over after {limit_s:g} s"
        elif isinstance(one, Exception):
            yield f"task {task}, {name}: {where} it raised {type(one).__name__}: {one}"
    yield from _differences(chosen, played, alone, where)


def _differences(
    chosen: list[tuple[str, int]], played: Sequence[object], alone: list[Played], where: str
) -> Iterator[str]:
    """Findings about episodes that differ from the same episodes played alone.

    Each pair of a policy and a task has at most one finding.
    """
    reported = set[tuple[str, int]]()
    for pair, one, expected in zip(chosen, played, alone, strict=True):
        if isinstance(one, Played) and one != expected and pair not in reported:
            reported.add(pair)
            yield (
                f"task {pair[1]}, {pair[0]}: {where} the episode differs from the one played "
                f"alone: keep an episode's data in self.state, and nothing that changes in the "
                f"class or the module"
            )

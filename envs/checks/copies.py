"""Rules about copies (forks, snapshots, pickles, a second instance) and about the two APIs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

from envs.base.loop import loop_thread
from envs.checks.probe import AnyEnv, Probe
from envs.episode import NotForkable, StepResult
from envs.play import Played, play


def copies(probe: Probe) -> Iterator[str]:
    """Check that forks and restored snapshots, taken at any turn, continue as the original does."""
    if not probe.env.forkable:
        with probe.copies(1) as [env]:
            env.reset(seed=probe.seed)
            try:
                env.fork().close()
            except NotForkable:
                return
        yield "forkable is False, yet fork does not raise NotForkable"
        return
    for task in probe.tasks:
        played = probe.reference(task)
        for turn in range(len(played.steps)):
            fork, restored, original = loop_thread.run(_three_ways(probe, played, turn))
            rest = list(played.steps[turn:])
            for name, steps in (("fork", fork), ("restored snapshot", restored)):
                if steps != rest:
                    yield (
                        f"task {task}: a {name} after {turn} turns continues differently: keep an "
                        f"episode's data in self.state, or override snapshot and restore"
                    )
            if original != rest:
                yield f"task {task}: a fork's actions after {turn} turns change the original"


async def _three_ways(probe: Probe, played: Played, turns: int) -> list[list[StepResult]]:
    """Play the rest of an episode in a fork, from a pickled snapshot, and in the original.

    In between, another fork takes other actions, which must not affect these three.
    """
    original, restored = made = probe.env.group(2)
    try:
        await original.areset(seed=probe.seed, options={"task": played.info["task"]})
        for action in played.actions[:turns]:
            await original.astep(action)
        await restored.arestore(pickle.loads(pickle.dumps(await original.asnapshot())))
        fork, stray = await original.afork(), await original.afork(reseed=probe.seed + 1)
        made += [fork, stray]
        while not (await stray.astep("word")).done:
            pass
        rest = played.actions[turns:]
        return [await _taken(env, rest) for env in (fork, restored, original)]
    finally:
        for env in made:
            await env.aclose()


async def _taken(env: AnyEnv, actions: Sequence[str]) -> list[StepResult]:
    """Take the actions in order until the episode ends, and return the step results."""
    steps: list[StepResult] = []
    for action in actions:
        steps.append(await env.astep(action))
        if steps[-1].done:
            break
    return steps


def pickles(probe: Probe) -> Iterator[str]:
    """Check that unpickled options equal the originals, and that pickled episodes continue."""
    options = probe.env.options
    if pickle.loads(pickle.dumps(options)) != options:
        yield "options change in a pickle: keep plain values in them"
    if probe.env._lease.injected is not None:
        return  # A pickle cannot hold services that the caller opened.
    task = probe.tasks[0]
    played = probe.reference(task)
    with probe.copies(1) as [env]:
        if env.forkable:
            env.reset(seed=probe.seed, options={"task": task})
        try:
            copy: AnyEnv = pickle.loads(pickle.dumps(env))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            yield (
                f"it cannot be pickled ({error}): define its class at the top of a module, and "
                f"keep plain data in self.state"
            )
            return
    try:
        if not copy.forkable:
            copy.reset(seed=probe.seed, options={"task": task})
        steps = [copy.step(action) for action in played.actions]
    finally:
        copy.close()
    if steps != list(played.steps):
        yield (
            f"task {task}: an unpickled environment continues differently: its class, its options "
            f"and self.state must hold everything"
        )


def side_by_side(probe: Probe) -> Iterator[str]:
    """Check that two environments with equal options are independent, even after one is closed."""
    task = probe.tasks[0]
    played = probe.reference(task)
    one, other = made = [probe.build() for _ in range(2)]
    try:
        starts = [env.reset(seed=probe.seed, options={"task": task}) for env in made]
        steps = [[env.step(action) for env in made] for action in played.actions]
        if starts != [(played.first, played.info)] * 2 or steps != [
            [step] * 2 for step in played.steps
        ]:
            yield (
                f"task {task}: two instances that take turns play differently than one alone: "
                f"keep nothing that changes in the class or the module"
            )
        other.reset(seed=probe.seed, options={"task": task})
        one.close()
        if [other.step(action) for action in played.actions] != list(played.steps):
            yield f"task {task}: closing one instance changes what another one does"
    finally:
        for env in made:
            env.close()


def faces(probe: Probe) -> Iterator[str]:
    """Check that the synchronous and the asynchronous API give equal results."""
    for name, task in probe.pairs():
        with probe.copies(1) as [env]:
            synchronous = play(env, probe.policy(name), seed=probe.seed, task=task)
        if synchronous != probe.alone(name, task):
            yield (
                f"task {task}, {name}: reset/step and areset/astep differ: write begin and turn, "
                f"and override none of the four"
            )

"""Rules about rewards: of the gold policy, of policies without knowledge, and of named rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator

from envs.checks.probe import GOLD, AnyEnv, Probe

MOST_FLOOR = 0.3
"""Highest reward floor without a waiver, as a share of the reward range."""


def floor_share(env: AnyEnv) -> float:
    """The reward floor as a share of the reward range: 0 at the lower end, 1 at the upper end."""
    low, high = env.reward_range
    return (env.reward_floor - low) / (high - low)


def gold(probe: Probe) -> Iterator[str]:
    """Check that the gold policy earns the best return and ends the episode itself.

    The report lists the rule as skipped for an environment without a gold policy.
    """
    if probe.player != GOLD:
        return
    tasks = probe.strength.gold_tasks
    poor: list[str] = []
    cut: list[str] = []
    for task in tasks:
        played, best = probe.reference(task), probe.env.best_return(task)
        if not math.isclose(played.reward, best, abs_tol=1e-9):
            poor.append(
                f"task {task}: earns {played.reward:g}, where reward_range promises {best:g}"
            )
        if not played.steps[-1].terminated:
            cut.append(f"task {task}: is cut short ({played.steps[-1].info['stop_reason']})")
    if poor:
        yield f"{poor[0]}; also on {len(poor)} of {len(tasks)} tasks; it reads only observations"
    if cut:
        yield f"{cut[0]}; also on {len(cut)} of {len(tasks)} tasks"


def floor(probe: Probe) -> Iterator[str]:
    """Check that policies without knowledge earn at most ``reward_floor``."""
    for name in probe.spam():
        for task in probe.tasks:
            reward = probe.alone(name, task).reward
            if not reward <= probe.env.reward_floor + 1e-9:
                yield (
                    f"task {task}: {name} earns {reward:g}, above {probe.env.reward_floor:g}: pay "
                    f"less for it, or declare a higher reward_floor"
                )


def low_floor(probe: Probe) -> Iterator[str]:
    """Check that the floor is low enough to leave room for learning."""
    (low, high), bottom = probe.env.reward_range, probe.env.reward_floor
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        yield f"reward_range ({low:g}, {high:g}) must be two finite numbers, the lower first"
    elif not low <= bottom <= high:
        yield f"reward_floor ({bottom:g}) is outside reward_range ({low:g}, {high:g})"
    elif (share := floor_share(probe.env)) > MOST_FLOOR + 1e-9 and not probe.env.floor_waiver:
        yield (
            f"reward_floor ({bottom:g}) lies at {share:.0%} of reward_range ({low:g}, {high:g}); "
            f"at most {MOST_FLOOR:.0%}: reward empty answers less, or explain it in floor_waiver"
        )


def rewards(probe: Probe) -> Iterator[str]:
    """Check named rewards and returns.

    Named rewards are finite and sum to the turn's reward; returns are in the declared range.
    """
    low, high = probe.env.reward_range
    for name, task in probe.pairs():
        played = probe.alone(name, task)
        for step in played.steps:
            named = step.info["rewards"]
            for kind in ("rewards", "scores"):
                for what, value in step.info[kind].items():
                    if not math.isfinite(value):
                        yield f"task {task}, {name}: {kind}[{what!r}] is {value}, not finite"
            if not math.isclose(sum(named.values()), step.reward, abs_tol=1e-9):
                yield f"task {task}, {name}: {named} is not {step.reward:g}"
        if not low - 1e-9 <= played.reward <= high + 1e-9:
            yield (
                f"task {task}, {name}: {played.reward:g} is outside [{low:g}, {high:g}]: pay "
                f"within reward_range, or declare another"
            )

"""``envs.check_env``: does an environment keep the contract of :class:`envs.TextEnv`?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envs.probe import AnyEnv, Probe, Strength
from envs.rules import RULES
from envs.rules.rewards import MOST_FLOOR, floor_share

_EPISODE = re.compile(r"^task \d+(, [^:]+)?: ")
"""How a finding begins that was made in an episode."""


class CheckFailed(Exception):
    """Raised when an environment breaks the contract; says everything that is wrong with it."""

    def __init__(self, env_id: str, violations: Sequence[str]) -> None:
        lines = "".join(f"\n- {violation}" for violation in violations)
        super().__init__(f"{env_id} breaks the contract of environments:{lines}")
        self.violations = tuple(violations)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was checked of an environment that keeps the contract."""

    env_id: str
    rules: tuple[str, ...]
    """Names of the rules that hold."""
    tasks: tuple[int, ...]
    """The tasks that were played."""
    longest_block_s: float
    """The longest time for which the event loop was not free, in seconds. An episode that kept it
    for too long was played again, and counts with its best."""
    num_gold_tasks: int
    """How many tasks the gold policy solved."""
    floor_waiver: str
    """Why the reward floor lies above 30% of the range; empty where it does not."""


def check_env(
    env: AnyEnv,
    *,
    num_tasks: int = 3,
    num_gold_tasks: int = 100,
    num_interleaved: int = 64,
    num_threads: int = 16,
    max_block_s: float = 0.02,
    seed: int = 0,
) -> CheckReport:
    """Hold an environment to its contract.

    Args:
        env: as it comes from ``envs.make``; its services are opened if nobody injected them, and
            stay open until it is closed.
        num_tasks: how many tasks are played by all policies, spread over its split.
        num_gold_tasks: how many the gold policy plays.
        num_interleaved: episodes at once in one loop.
        num_threads: threads that play at once.
        max_block_s: how long a turn may keep the event loop from others, in seconds.
        seed: of the episodes.

    Raises:
        CheckFailed: a rule is broken; lists every one that is.
        ValueError: a number is less than 1.
    """
    for name, number in (
        ("num_tasks", num_tasks),
        ("num_gold_tasks", num_gold_tasks),
        ("num_interleaved", num_interleaved),
        ("num_threads", num_threads),
    ):
        if number < 1:
            raise ValueError(f"{name} ({number}) must be >= 1")
    tasks = _spread(len(env.tasks), num_tasks)
    strength = Strength(
        gold_tasks=_spread(len(env.tasks), num_gold_tasks),
        num_interleaved=num_interleaved,
        num_threads=num_threads,
        max_block_s=max_block_s,
    )
    probe = Probe(env, tasks, seed, strength)
    env_id = env.env_id or type(env).__name__
    violations = _violations(probe)
    if violations:
        raise CheckFailed(env_id, violations)
    waiver = env.floor_waiver if floor_share(env) > MOST_FLOOR else ""
    block_s, num_solved = probe.longest_block_s, len(strength.gold_tasks)
    return CheckReport(env_id, tuple(RULES), tasks, block_s, num_solved, waiver)


def _violations(probe: Probe) -> list[str]:
    """What breaks the rules, each with the rule's name."""
    violations: list[str] = []
    raised: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        # The environment is foreign code: whatever it raises is a finding.
        try:
            violations += [f"{name}: {found}" for found in _said_once(rule(probe))]
        except Exception as error:
            raised.setdefault(f"raised {type(error).__name__}: {error}", []).append(name)
    # What breaks every episode is said once, not by every rule that plays one.
    return violations + [f"{', '.join(names)}: {what}" for what, names in raised.items()]


def _said_once(findings: Iterable[str]) -> list[str]:
    """Findings that differ in their episodes alone are one: the first, and how many more."""
    alike: dict[str, list[str]] = {}
    for finding in findings:
        alike.setdefault(_EPISODE.sub("", finding), []).append(finding)
    return [
        f"{first} (and so {len(others)} more)" if others else first
        for first, *others in alike.values()
    ]


def _spread(count: int, wanted: int) -> tuple[int, ...]:
    """Up to ``wanted`` indices below ``count``, evenly apart."""
    return tuple(sorted({i * count // wanted for i in range(wanted)}))

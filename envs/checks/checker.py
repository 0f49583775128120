"""``envs.check_env``: does an environment keep the contract of :class:`envs.TextEnv`?"""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from envs.checks.probe import GOLD, AnyEnv, Probe, Strength
from envs.checks.rewards import MOST_FLOOR, floor_share
from envs.checks.rules import RULES

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
    skipped: tuple[str, ...]
    """Names of the rules that were not tested: "gold policy", where the environment has none."""
    tasks: tuple[int, ...]
    """The tasks that were played."""
    longest_block_s: float
    """The longest time for which the event loop was not free, in seconds. An episode that kept it
    for too long was played again, and counts with its best."""
    num_gold_tasks: int
    """How many tasks the gold policy solved; 0 without one."""
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
    max_rule_s: float = 180.0,
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
        max_rule_s: how long one rule may take, in seconds. Behind a rule that takes longer no other
            is checked, and a daemon thread is left to its last call.
        seed: of the episodes.

    Raises:
        CheckFailed: a rule is broken or takes too long; lists every one that is broken.
        ValueError: a number is less than 1, or ``max_rule_s`` is not above 0.
    """
    for name, number in (
        ("num_tasks", num_tasks),
        ("num_gold_tasks", num_gold_tasks),
        ("num_interleaved", num_interleaved),
        ("num_threads", num_threads),
    ):
        if number < 1:
            raise ValueError(f"{name} ({number}) must be >= 1")
    if not max_rule_s > 0:
        raise ValueError(f"max_rule_s ({max_rule_s:g}) must be above 0")
    tasks = _spread(len(env.tasks), num_tasks)
    strength = Strength(
        gold_tasks=_spread(len(env.tasks), num_gold_tasks),
        num_interleaved=num_interleaved,
        num_threads=num_threads,
        max_block_s=max_block_s,
    )
    probe = Probe(env, tasks, seed, strength)
    env_id = env.env_id or type(env).__name__
    violations = _violations(probe, max_rule_s)
    if violations:
        raise CheckFailed(env_id, violations)
    return _report(env_id, probe)


def _report(env_id: str, probe: Probe) -> CheckReport:
    """What was checked of an environment that breaks no rule."""
    env, skipped = probe.env, () if probe.player == GOLD else ("gold policy",)
    return CheckReport(
        env_id=env_id,
        rules=tuple(name for name in RULES if name not in skipped),
        skipped=skipped,
        tasks=probe.tasks,
        longest_block_s=probe.longest_block_s,
        num_gold_tasks=0 if skipped else len(probe.strength.gold_tasks),
        floor_waiver=env.floor_waiver if floor_share(env) > MOST_FLOOR else "",
    )


def _violations(probe: Probe, max_rule_s: float) -> list[str]:
    """What breaks the rules, each with the rule's name."""
    violations: list[str] = []
    raised: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        # The environment is foreign code: whatever it raises is a finding.
        checking = _started(name, rule, probe)
        try:
            violations += [f"{name}: {found}" for found in checking.result(max_rule_s)]
        except TimeoutError as error:
            if checking.done():
                raised.setdefault(f"raised {type(error).__name__}: {error}", []).append(name)
                continue
            violations.append(
                f"{name}: not over after {max_rule_s:g} s, and the rules behind it were not "
                f"checked: make tasks and turns faster, or give it longer (max_rule_s)"
            )
            break
        except Exception as error:
            raised.setdefault(f"raised {type(error).__name__}: {error}", []).append(name)
    # What breaks every episode is said once, not by every rule that plays one.
    return violations + [f"{', '.join(names)}: {what}" for what, names in raised.items()]


def _started(name: str, rule: Callable[[Probe], Iterator[str]], probe: Probe) -> Future[list[str]]:
    """What a rule finds, looked for in a thread that nothing waits for at the end."""
    checking: Future[list[str]] = Future()
    context = contextvars.copy_context()

    def look() -> None:
        try:
            checking.set_result(context.run(lambda: _said_once(rule(probe))))
        except BaseException as error:
            checking.set_exception(error)

    threading.Thread(target=look, name=f"turnwise-check-{name}", daemon=True).start()
    return checking


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

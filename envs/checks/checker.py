"""``envs.check_env``: tests whether an environment keeps the contract of :class:`envs.TextEnv`."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from envs.author_errors import raised
from envs.checks.probe import GOLD, AnyEnv, Probe, Strength
from envs.checks.resources import free_loop
from envs.checks.rewards import MOST_FLOOR, floor_share
from envs.checks.rules import RULES

_EPISODE = re.compile(r"^task \d+(, [^:]+)?: ")
"""Prefix of a finding about one episode."""
LONG_BLOCK_S = 0.2
"""If episodes hold the event loop for longer, the rules after this one are not checked: they play
hundreds of turns."""
SILENCE_S = 10.0
"""Seconds after which the log names the rule that takes so long."""
logger = logging.getLogger(__name__)


class CheckFailed(Exception):
    """Raised when an environment breaks the contract; the message lists all violations."""

    def __init__(self, env_id: str, violations: Sequence[str]) -> None:
        lines = "".join(f"\n- {violation}" for violation in violations)
        super().__init__(f"{env_id} breaks the contract of environments:{lines}")
        self.violations = tuple(violations)

    @classmethod
    def by_error(cls, env_id: str, env_type: type[AnyEnv], error: BaseException) -> CheckFailed:
        """A failure whose only violation names an error and its place in the environment's code."""
        return cls(env_id, [raised(error, env_type)])


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of the check of an environment that keeps the contract."""

    env_id: str
    rules: tuple[str, ...]
    """Names of the rules that hold."""
    skipped: tuple[str, ...]
    """Names of the rules that could not be tested, such as "gold policy" without a gold policy."""
    tasks: tuple[int, ...]
    """The tasks that were played."""
    longest_block_s: float
    """Longest time in seconds for which an episode blocked the event loop. An episode that exceeds
    the limit is repeated; only the shortest time of its repetitions counts."""
    num_gold_tasks: int
    """Number of tasks that the gold policy solved; 0 without a gold policy."""
    floor_waiver: str
    """Reason why the reward floor exceeds 30% of the range; empty if the floor is lower."""


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
    """Test an environment against the contract.

    Args:
        env: an environment from ``envs.make``. The check opens the environment's services unless
            the caller injected them; they stay open until ``env`` is closed.
        num_tasks: number of tasks, spread over the split, that all policies play.
        num_gold_tasks: number of tasks that the gold policy plays.
        num_interleaved: number of concurrent episodes in one event loop.
        num_threads: number of threads that play concurrently.
        max_block_s: maximum seconds for which a turn is allowed to block the event loop.
        max_rule_s: seconds that one rule may take. If a rule takes longer, the check stops, and a
            daemon thread finishes the rule's last call.
        seed: seed of the episodes.

    Raises:
        CheckFailed: a rule is broken or takes too long; the message lists all broken rules.
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
    env_id = env.env_id or type(env).__name__
    try:
        count = len(env.tasks)
    except Exception as error:
        raise CheckFailed.by_error(env_id, type(env), error) from error
    tasks = _spread(count, num_tasks)
    strength = Strength(
        gold_tasks=_spread(count, num_gold_tasks),
        num_interleaved=num_interleaved,
        num_threads=num_threads,
        max_block_s=max_block_s,
    )
    probe = Probe(env, tasks, seed, strength)
    violations = _violations(probe, max_rule_s)
    if violations:
        raise CheckFailed(env_id, violations)
    return _report(env_id, probe)


def _report(env_id: str, probe: Probe) -> CheckReport:
    """The report on an environment that breaks no rule."""
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
    """The violations of all rules, each with the rule's name."""
    violations: list[str] = []
    failed: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        checking = _start(name, rule, probe)
        if wait([checking], min(SILENCE_S, max_rule_s)).not_done:
            logger.warning("the rule %r takes long; it may take %g s", name, max_rule_s)
        if wait([checking], max(0.0, max_rule_s - SILENCE_S)).not_done:
            violations.append(
                f"{name}: not over after {max_rule_s:g} s, and the rules after it were not "
                f"checked: make tasks and turns faster, or raise max_rule_s"
            )
            break
        # The environment is foreign code: whatever it raises is a finding, SystemExit included.
        error = checking.exception()
        if error is None:
            violations += [f"{name}: {found}" for found in checking.result()]
            if violations and rule is free_loop and probe.longest_block_s > LONG_BLOCK_S:
                violations[-1] += "; no other rule was checked, which would take minutes"
                break
        else:
            failed.setdefault(raised(error, type(probe.env)), []).append(name)
    # An exception of every episode is reported once, not once per rule.
    return violations + [f"{', '.join(names)}: {what}" for what, names in failed.items()]


def _start(name: str, rule: Callable[[Probe], Iterator[str]], probe: Probe) -> Future[list[str]]:
    """Start to check a rule in a daemon thread. The returned future receives the findings."""
    checking: Future[list[str]] = Future()
    context = contextvars.copy_context()

    def check() -> None:
        try:
            checking.set_result(context.run(lambda: _distinct(rule(probe))))
        except BaseException as error:
            checking.set_exception(error)

    threading.Thread(target=check, name=f"turnwise-check-{name}", daemon=True).start()
    return checking


def _distinct(findings: Iterable[str]) -> list[str]:
    """The findings, without repetitions in other episodes.

    A finding that several episodes share appears once, with the number of the other episodes.
    """
    alike: dict[str, list[str]] = {}
    for finding in findings:
        alike.setdefault(_EPISODE.sub("", finding), []).append(finding)
    return [
        f"{first} (and so {len(others)} more)" if others else first
        for first, *others in alike.values()
    ]


def _spread(count: int, wanted: int) -> tuple[int, ...]:
    """Up to ``wanted`` evenly spaced indices below ``count``."""
    return tuple(sorted({i * count // wanted for i in range(wanted)}))

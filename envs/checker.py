"""``envs.check_env``: does an environment keep the contract of :class:`envs.TextEnv`?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.probe import AnyEnv, Probe
from envs.rules import RULES


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


def check_env(
    env: AnyEnv, *, num_tasks: int = 3, seed: int = 0, max_block_s: float = 0.1
) -> CheckReport:
    """Hold an environment to its contract.

    Args:
        env: as it comes from ``envs.make``; its services are opened if nobody injected them, and
            stay open until it is closed.
        num_tasks: how many tasks are played, spread over its split.
        seed: of the episodes.
        max_block_s: how long a turn may keep the event loop from others, in seconds.

    Raises:
        CheckFailed: a rule is broken; lists every one that is.
        ValueError: ``num_tasks`` is less than 1.
    """
    if num_tasks < 1:
        raise ValueError(f"num_tasks ({num_tasks}) must be >= 1")
    count = len(env.tasks)
    tasks = tuple(sorted({i * count // num_tasks for i in range(num_tasks)}))
    probe = Probe(env, tasks, seed, max_block_s)
    violations: list[str] = []
    raised: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        # The environment is foreign code: whatever it raises is a finding.
        try:
            violations += [f"{name}: {found}" for found in rule(probe)]
        except Exception as error:
            raised.setdefault(f"raised {type(error).__name__}: {error}", []).append(name)
    # What breaks every episode is said once, not by every rule that plays one.
    violations += [f"{', '.join(names)}: {what}" for what, names in raised.items()]
    env_id = env.env_id or type(env).__name__
    if violations:
        raise CheckFailed(env_id, violations)
    return CheckReport(env_id, tuple(RULES), tasks, probe.longest_block_s)

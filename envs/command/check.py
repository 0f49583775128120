"""``python -m envs check NAME``: test an environment against the contract."""

from __future__ import annotations

from collections.abc import Sequence

import envs
from envs.command.options import read_options

_SKIPPED = (
    "not tested: gold policy (it has none): whether the top of reward_range can be earned is not "
    "known\n"
)


def check(name: str, words: Sequence[str], num_tasks: int, max_rule_s: float) -> str:
    """The report of :func:`envs.check_env` on an environment that keeps the contract.

    Args:
        name: an id, or a bare name.
        words: options as ``option=value``.
        num_tasks: number of tasks to play.
        max_rule_s: seconds that one rule may take.

    Raises:
        CheckFailed: the environment breaks the contract; the message lists all violations.
        ValueError: an option, ``num_tasks`` or ``max_rule_s`` is wrong.
    """
    env = envs.make(name, **read_options(envs.env_type(name).Options, words))
    try:
        report = envs.check_env(env, num_tasks=num_tasks, max_rule_s=max_rule_s)
    finally:
        env.close()
    tasks = ", ".join(map(str, report.tasks))
    gold = "" if report.skipped else f"; the gold policy on {report.num_gold_tasks}"
    waiver = f"; its floor is high: {report.floor_waiver}" if report.floor_waiver else ""
    kept = f"{report.env_id} keeps the contract (tasks {tasks}{gold})"
    return f"{kept}: {', '.join(report.rules)}{waiver}\n{_SKIPPED if report.skipped else ''}"

"""``python -m envs check NAME``: hold an environment to the contract."""

from __future__ import annotations

from collections.abc import Sequence

import envs
from envs.command.options import read_options

_SKIPPED = (
    "not tested: gold policy (it has none): whether the top of reward_range can be earned is not "
    "known\n"
)


def check(name: str, words: Sequence[str], num_tasks: int, max_rule_s: float) -> str:
    """What :func:`envs.check_env` says of an environment that keeps the contract.

    Args:
        name: an id, or a bare name.
        words: options as ``option=value``.
        num_tasks: how many tasks are played.
        max_rule_s: how long one rule may take, in seconds.

    Raises:
        CheckFailed: it breaks the contract; says everything that is wrong.
        ValueError: an option or the number is wrong.
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

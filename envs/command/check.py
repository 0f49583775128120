"""``python -m envs check NAME``: test an environment against the contract."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import envs
from envs.command.expected import located
from envs.command.options import read_options
from envs.registration import options_of

logger = logging.getLogger(__name__)
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
    env_id, kind = envs.resolve(name), envs.env_type(name)
    with located(kind, env_id, passed=(ValueError,)):
        options = options_of(name, read_options(kind.Options, words))
    with located(kind, env_id):
        env = envs.make_from(env_id, options)
    try:
        report = envs.check_env(env, num_tasks=num_tasks, max_rule_s=max_rule_s)
    finally:
        _close(env)
    tasks = ", ".join(map(str, report.tasks))
    gold = "" if report.skipped else f"; the gold policy on {report.num_gold_tasks}"
    waiver = f"; its floor is high: {report.floor_waiver}" if report.floor_waiver else ""
    kept = f"{report.env_id} keeps the contract (tasks {tasks}{gold})"
    return f"{kept}: {', '.join(report.rules)}{waiver}\n{_SKIPPED if report.skipped else ''}"


def _close(env: envs.TextEnv[Any, Any]) -> None:
    """Close the environment. What its code raises is logged: the report must not be lost."""
    try:
        env.close()
    except Exception as error:
        failure = envs.CheckFailed.by_error(env.env_id, type(env), error)
        logger.warning("close of %s %s", env.env_id, *failure.violations)

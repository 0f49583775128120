"""Text environments in which an agent acts for one turn or several.

Make one with ``env = envs.make("search-qa-v0")``. Then call Gymnasium's ``reset`` and ``step``, or
``areset`` and ``astep`` in asynchronous code.
"""

# ruff: noqa: E402
from envs.base.name_clash import check_tools

check_tools()

from envs.adapters.reasoning_gym_tasks import TASKS
from envs.checks.checker import CheckFailed, CheckReport, check_env
from envs.env import EnvOptions, Snapshot, Tasks, TextEnv
from envs.episode import (
    Action,
    EnvFailure,
    EnvToolCall,
    NotForkable,
    OrderError,
    Reply,
    StepResult,
    StopReason,
    cut,
    finish,
    go_on,
)
from envs.options import Card
from envs.registration import (
    env_type,
    ids,
    make,
    make_from,
    register,
    register_plugins_with_gymnasium,
    resolve,
)
from envs.tool_env import ToolEnv, ToolOptions

__all__ = [
    "Action",
    "Card",
    "CheckFailed",
    "CheckReport",
    "EnvFailure",
    "EnvOptions",
    "EnvToolCall",
    "NotForkable",
    "OrderError",
    "Reply",
    "Snapshot",
    "StepResult",
    "StopReason",
    "Tasks",
    "TextEnv",
    "ToolEnv",
    "ToolOptions",
    "check_env",
    "cut",
    "env_type",
    "finish",
    "go_on",
    "ids",
    "make",
    "make_from",
    "register",
    "resolve",
]

register("code-sandbox-v0", "envs.code.env:CodeSandboxEnv")
register("countdown-v0", "envs.logic.countdown.env:CountdownEnv")
register("harbor-v0", "envs.harbor.env:HarborEnv")
register("knights-knaves-v0", "envs.logic.knights.env:KnightsKnavesEnv")
register("kuhn-poker-v0", "envs.poker.env:KuhnPokerEnv")
register("mastermind-v0", "envs.logic.mastermind.env:MastermindEnv")
register("math-v0", "envs.math.env:MathEnv")
register("minigrid-v0", "envs.worlds.minigrid:MinigridEnv")
register("mix-v0", "envs.mixture.env:MixEnv")
register("reference-qa-v0", "envs.reference.env:ReferenceQAEnv")
register("search-qa-v0", "envs.search.env:SearchQAEnv")
register("sudoku-v0", "envs.logic.sudoku.env:SudokuEnv")
register("support-v0", "envs.support.env:SupportEnv")
register("swe-mini-v0", "envs.software.env:SweMiniEnv")
register("textworld-v0", "envs.worlds.textworld:TextWorldEnv")
for _task in TASKS:
    register(f"reasoning-gym/{_task}-v0", f"envs.adapters.reasoning_gym:{_task}")
register_plugins_with_gymnasium()

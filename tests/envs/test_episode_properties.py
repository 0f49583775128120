"""Random episodes of every environment that runs by itself: equal starts, determinism, forks.

Each episode is played once and then again on a copy. At every turn of the second, a fork takes the
actions that follow and must live the same rest; another takes other actions and must leave the
episode alone. ``pytest`` plays 500 of them, ``pytest --whole`` 10,000.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

import envs
from envs.base.loop import loop_thread
from envs.properties import PropertyReport, live_again

ENVIRONMENTS = [
    ("countdown", {}),
    ("countdown", {"max_turns": 3, "use_all": True}),
    ("knights-knaves", {}),
    ("knights-knaves", {"people": 6, "depth": 3}),
    ("mastermind", {}),
    ("mastermind", {"pegs": 4, "colours": 6, "max_turns": 8, "information_reward": 1.0}),
    ("reference-qa", {}),
    ("reference-qa", {"reward": "soft", "sentences": 5}),
    ("search-qa", {}),
    ("search-qa", {"hops": "2", "reward": "paper"}),
    ("support", {"level": 2, "requests": "all"}),
    ("support", {"level": 3, "requests": "all", "max_turns": 24}),
    ("sudoku", {}),
    ("sudoku", {"size": 9, "holes": 30, "max_turns": 3}),
    ("math", {}),
    ("math", {"tools": "calculator", "max_turns": 3}),
    ("math", {"tools": "python", "max_turns": 4}),
    ("code-sandbox", {"max_turns": 3}),
    ("reasoning-gym/gcd", {}),
    ("countdown", {"token_budget": "both"}),
]
NAMES = [f"{name} {options}" for name, options in ENVIRONMENTS]


async def live(name: str, options: dict, count: int) -> list[PropertyReport]:
    """Episodes with shared services, eight at a time."""
    env = envs.make(name, **options)
    async with env.open_services(env.options) as services:
        shared = envs.make(name, services=services, **options)
        lived: list[PropertyReport] = []
        for start in range(0, count, 8):
            some = range(start, min(start + 8, count))
            games = [live_again(shared, random.Random(f"{name} {i}")) for i in some]
            lived += await asyncio.gather(*games)
        return lived


def runs_programs(name: str, options: dict) -> bool:
    """Whether episodes run programs, which takes long."""
    return name == "code-sandbox" or "python" in options.get("tools", "")


@pytest.mark.quick
@pytest.mark.parametrize(("name", "options"), ENVIRONMENTS, ids=NAMES)
def test_five_hundred_episodes_live_again(name, options):
    check_episodes(name, options, 10 if runs_programs(name, options) else 30)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "options"), ENVIRONMENTS, ids=NAMES)
def test_ten_thousand_episodes_live_again(name, options):
    check_episodes(name, options, 40 if runs_programs(name, options) else 620)


def check_episodes(name: str, options: dict, count: int) -> None:
    lived = loop_thread.run(live(name, options, count))
    assert [found for one in lived for found in one.violations] == []
    turns = [one.num_turns for one in lived]
    # Where there are turns to take, some episodes are long and some are short.
    most = envs.make(name, **options).options.max_turns
    assert max(turns) <= most
    assert most == 1 or max(turns) > 1


# ---- what is wrong is found ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LampOptions(envs.EnvOptions):
    max_turns: int = 4


class LampEnv(envs.TextEnv[int, list[int]]):
    """Switch one of many lamps; the last turn reports how often."""

    Options = LampOptions

    def __init__(self, options, services=None):
        super().__init__(options, range(50), services)
        self.env_id = "lamp-v0"

    def begin(self, task: int) -> str:
        self.state = [task, 0]
        return f"lamp {task}"

    def turn(self, action: envs.Action) -> envs.Reply:
        self.state[1] += len(action)
        if self.turns_left == 1:
            return envs.finish({"switched": 1.0}, f"{self.state}")
        return envs.go_on(f"{self.state}")

    def gold_policy(self):
        return lambda observation: "switch"


class Uneven(LampEnv):
    """Its members are numbered."""

    def group(self, num_members):
        members = super().group(num_members)
        for place, member in enumerate(members):
            member.place = place
        return members

    def begin(self, task: int) -> str:
        return f"{super().begin(task)} {self.place}"


class SharedForks(LampEnv):
    """A fork's lamp is its parent's."""

    async def afork(self, reseed=None):
        twin = await super().afork(reseed)
        twin.state = self.state
        return twin


class LostForks(LampEnv):
    async def afork(self, reseed=None):
        twin = await super().afork(reseed)
        twin.state[1] += 1
        return twin


class LostSnapshots(LampEnv):
    async def arestore(self, snapshot):
        await super().arestore(snapshot)
        self.state[1] += 1


class Restless(LampEnv):
    """A third member is another."""

    def turn(self, action: envs.Action) -> envs.Reply:
        Restless.turns = getattr(Restless, "turns", 0) + 1
        self.state[1] = Restless.turns
        return super().turn(action)


class Poor(LampEnv):
    reward_range = (0.0, 2.0)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Uneven, "members of a group start differently"),
        (SharedForks, "turn 0: actions of forks change the original episode"),
        (LostForks, "turn 0: a fork with equal actions has other results"),
        (LostSnapshots, "turn 1: a restored snapshot with equal actions has other results"),
        (Restless, "equal actions have other results in another member"),
        (Poor, "the gold policy earns 1"),
    ],
)
def test_what_does_not_hold_is_said(kind, says):
    async def several() -> list[str]:
        env = kind(LampOptions())
        lived = [await live_again(env, random.Random(i)) for i in range(6)]
        return [found for one in lived for found in one.violations]

    found = loop_thread.run(several())
    assert any(what.startswith("lamp-v0, task ") and what.endswith(says) for what in found), found


def test_a_sound_environment_has_no_violations():
    lived = loop_thread.run(live_again(LampEnv(LampOptions()), random.Random(0)))
    assert lived == PropertyReport(4, [])

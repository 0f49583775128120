"""Steps per second of an environment, compared with Gymnasium, asyncio and GEM.

    python -m benchmarks.environments.steps [--rounds 7] [--gem-python PYTHON]

One game (name the number of the turn; ten turns per episode) exists as a ``TextEnv`` and as a
hand-written environment with the same observations, rewards and info. All variants alternate within
a round; on a busy machine the ratios are more reliable than the rates. Prints one JSON line:

- synchronous: ``reset`` and ``step`` of the ``TextEnv``, of a raw ``gymnasium.Env``, and of one
  with an empty info;
- asynchronous: 256 episodes that yield to the loop at each step, by ``astep`` and by a plain loop
  of tasks over the raw environment; also with an ``async`` turn that yields and has a deadline;
- waiting: 64 environments with random step times, as independent tasks, and in GEM's vector
  environment, whose step waits for the slowest. ``--gem-python`` names an interpreter that has GEM
  (gem-llm); without it the row contains a note.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

import envs
from envs.base.spaces import Unicode

TURNS = 10
TASKS = 100
EPISODES = 256
WAITING, STEPS = 64, 20
LATENCIES = {"exponential": 20.0, "uniform": 40.0}
"""Random times of a step: exponential with this mean, uniform from 0 to this; milliseconds."""


class NumberEnv(envs.TextEnv[int, int]):
    """Name the number of the turn."""

    def __init__(self, options: envs.EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, range(TASKS), services)

    def begin(self, task: int) -> str:
        """The rules."""
        self.state = 0
        return f"Game {task}. Which turn is it?"

    def turn(self, action: envs.Action) -> envs.Reply:
        """Right or wrong."""
        self.state += 1
        right = float(action == str(self.state))
        if self.state == TURNS:
            return envs.finish({"right": right}, "That was the last turn.")
        return envs.go_on(f"Turn {self.state} is over; which is next?", {"right": right})


class YieldingEnv(NumberEnv):
    """Every turn yields to the loop."""

    async def turn(self, action: envs.Action) -> envs.Reply:
        """The reply, as in the class above."""
        await asyncio.sleep(0)
        return NumberEnv.turn(self, action)


class WaitingEnv(NumberEnv):
    """Every turn takes its time."""

    async def turn(self, action: envs.Action) -> envs.Reply:
        """The action is how many seconds."""
        await asyncio.sleep(float(action))
        return envs.go_on("")


class RawEnv(gymnasium.Env[str, str]):
    """The same game by hand."""

    observation_space = Unicode()
    action_space = Unicode()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; see ``NumberEnv.begin``."""
        super().reset(seed=seed)
        self.task = int(self.np_random.integers(TASKS))
        self.turns = 0
        return f"Game {self.task}. Which turn is it?", {"task": self.task}

    def step(self, action: str):
        """Take an action; see ``NumberEnv.turn``."""
        self.turns += 1
        right = float(action == str(self.turns))
        info = {
            "task": self.task,
            "turn": self.turns,
            "rewards": {"right": right},
            "scores": {},
            "stop_reason": None,
            "tool_calls": [],
        }
        if self.turns == TURNS:
            return "That was the last turn.", right, True, False, info
        return f"Turn {self.turns} is over; which is next?", right, False, False, info


class EmptyInfoEnv(RawEnv):
    """And it says nothing beside its observations."""

    def step(self, action: str):
        """Take an action; see ``NumberEnv.turn``."""
        self.turns += 1
        right = float(action == str(self.turns))
        if self.turns == TURNS:
            return "That was the last turn.", right, True, False, {}
        return f"Turn {self.turns} is over; which is next?", right, False, False, {}


def play(env: gymnasium.Env[str, str], episodes: int) -> float:
    """Steps per second."""
    started = time.perf_counter()
    for _ in range(episodes):
        env.reset()
        over = False
        while not over:
            _, _, over, _, _ = env.step("5")
    return episodes * TURNS / (time.perf_counter() - started)


async def by_astep(episodes: int) -> None:
    env = NumberEnv(envs.EnvOptions(max_turns=TURNS))
    for _ in range(episodes):
        await env.areset()
        over = False
        while not over:
            await asyncio.sleep(0)
            _, _, over, _, _ = await env.astep("5")


async def by_async_turns(episodes: int) -> None:
    env = YieldingEnv(envs.EnvOptions(max_turns=TURNS))
    for _ in range(episodes):
        await env.areset()
        over = False
        while not over:
            _, _, over, _, _ = await env.astep("5")


async def by_hand(episodes: int) -> None:
    env = RawEnv()
    for _ in range(episodes):
        env.reset()
        over = False
        while not over:
            await asyncio.sleep(0)
            _, _, over, _, _ = env.step("5")


def play_all(one: Callable[[int], Any], episodes: int) -> float:
    """Steps per second of EPISODES tasks."""

    async def every() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(one(episodes) for _ in range(EPISODES)))
        return EPISODES * episodes * TURNS / (time.perf_counter() - started)

    return asyncio.run(every())


def latencies(kind: str, seed: int) -> np.ndarray:
    """Seconds of each step of each environment, [WAITING, STEPS]."""
    rng, ms = np.random.default_rng(seed), LATENCIES[kind]
    shape = (WAITING, STEPS)
    drawn = rng.exponential(ms, shape) if kind == "exponential" else rng.uniform(0, ms, shape)
    return drawn / 1000


def waiting(table: np.ndarray) -> float:
    """Seconds until every environment took its steps."""

    async def one(env: WaitingEnv, seconds: np.ndarray) -> None:
        await env.areset()
        for s in seconds:
            await env.astep(str(s))

    async def every() -> float:
        members = WaitingEnv(envs.EnvOptions(max_turns=STEPS + 1)).group(WAITING)
        started = time.perf_counter()
        await asyncio.gather(*(one(env, row) for env, row in zip(members, table, strict=True)))
        return time.perf_counter() - started

    return asyncio.run(every())


GEM_SIDE = """
import json, sys, time
from gem.core import Env
from gem.vector.async_vector_env import AsyncVectorEnv

class WaitingEnv(Env):
    def reset(self, seed=None):
        return "", {}
    def step(self, action):
        time.sleep(float(action))
        return "", 0.0, False, False, {}

for line in sys.stdin:
    table = json.loads(line)
    vector = AsyncVectorEnv(["w"] * len(table), [WaitingEnv] * len(table))
    vector.reset()
    started = time.perf_counter()
    for actions in zip(*table):
        vector.step([str(seconds) for seconds in actions])
    print(time.perf_counter() - started, flush=True)
    vector.thread_pool_executer.shutdown()
"""


class Gem:
    """GEM's vector environment, one thread for each environment, in its own interpreter."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-I", "-c", GEM_SIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def waiting(self, table: np.ndarray) -> float:
        """Measure GEM's environments; see :func:`waiting`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(table.tolist()) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("GEM's interpreter ended: is gem-llm installed there?")
        return float(answer)

    def close(self) -> None:
        """End the interpreter."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


def compared(ours: list[float], theirs: list[float], target: float) -> dict[str, Any]:
    """Medians of rates, and the median of the rounds' ratios."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "ours_per_s": round(median(ours)),
        "theirs_per_s": round(median(theirs)),
        "ratio": round(median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "target": target,
    }


def measure(rounds: int, gem: Gem | None) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    ours = NumberEnv(envs.EnvOptions(max_turns=TURNS))
    for index in range(rounds):
        # Short turns, many times: what else the machine does falls on all alike.
        for _ in range(10):
            note("text_env", play(ours, 1000))
            note("raw", play(RawEnv(), 1000))
            note("empty_info", play(EmptyInfoEnv(), 1000))
        for _ in range(3):
            note("astep", play_all(by_astep, 4))
            note("async turns", play_all(by_async_turns, 4))
            note("by_hand", play_all(by_hand, 4))
        for kind in LATENCIES:
            table = latencies(kind, index)
            note(f"waiting {kind}", table.size / waiting(table))
            if gem is not None:
                note(f"gem {kind}", table.size / gem.waiting(table))
    result: dict[str, Any] = {
        "synchronous": compared(rates["text_env"], rates["raw"], 0.5),
        "synchronous_beside_empty_info": compared(rates["text_env"], rates["empty_info"], 0.5),
        "asynchronous": compared(rates["astep"], rates["by_hand"], 0.6),
        "asynchronous_turns": compared(rates["async turns"], rates["by_hand"], 0.6),
    }
    for kind in LATENCIES:
        if gem is None:
            result[f"waiting_{kind}"] = "GEM was not measured: --gem-python names no interpreter"
        else:
            mine, other = rates[f"waiting {kind}"], rates[f"gem {kind}"]
            result[f"waiting_{kind}"] = compared(mine, other, 2.0)
    return result


def machine() -> dict[str, Any]:
    """Properties of the machine on which figures depend."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--gem-python", default="", help="an interpreter with gem-llm 0.1.0")
    options = parser.parse_args()
    gem = Gem(options.gem_python) if options.gem_python else None
    try:
        result = measure(options.rounds, gem)
    finally:
        if gem is not None:
            gem.close()
    print(json.dumps({"benchmark": "env_steps", **machine(), **result}))


if __name__ == "__main__":
    main()

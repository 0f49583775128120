"""Ten thousand random episodes of every environment, checked by ``envs.properties``.

    python -m benchmarks.environments.properties [--episodes 10000] [--only NAME] [--seed 0]

Environments that answer within a millisecond play most of the episodes. Environments that run
programs or generate tasks slowly play fewer. Eight episodes run concurrently. The last line is JSON
with every violation; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import envs
from envs.base.loop import loop_thread
from envs.properties import PropertyReport, live_again

AT_ONCE = 8
BUILT_IN: list[tuple[str, dict[str, Any], int]] = [
    ("countdown", {}, 6),
    ("countdown", {"max_turns": 3, "use_all": True}, 6),
    ("countdown", {"token_budget": "both", "max_turns": 2}, 3),
    ("knights-knaves", {}, 6),
    ("knights-knaves", {"people": 6, "depth": 3}, 3),
    ("mastermind", {}, 6),
    ("mastermind", {"pegs": 4, "colours": 6, "max_turns": 8, "information_reward": 1.0}, 6),
    ("sudoku", {"max_turns": 2}, 6),
    ("sudoku", {"size": 9, "holes": 30, "max_turns": 3}, 2),
    ("search-qa", {}, 6),
    ("search-qa", {"hops": "all", "max_turns": 6}, 3),
    ("search-qa", {"syntax": "r1-searcher"}, 3),
    ("search-qa", {"syntax": "search-r1", "variant": "format"}, 3),
    ("search-qa", {"syntax": "fenced"}, 3),
    ("search-qa", {"syntax": "json"}, 3),
    ("search-qa", {"tools": "calculator"}, 3),
    ("mix", {"of": "mastermind + sudoku"}, 3),
    ("math", {"level": 2}, 4),
    ("math", {"tools": "calculator", "max_turns": 4}, 4),
    ("math", {"tools": "python", "max_turns": 4}, 1),
    ("code-sandbox", {}, 1),
    ("code-sandbox", {"max_turns": 3}, 1),
]
"""Environment, options, and its weight."""
GYM_EPISODES = 5
"""Number of episodes of each task of reasoning-gym."""
UNSCORED = ("reasoning-gym/",)


def chosen(episodes: int) -> list[tuple[str, dict[str, Any], int]]:
    """Environments with options and how many episodes they get; together, ``episodes``."""
    gym: list[tuple[str, dict[str, Any], int]] = [
        (env_id, {"trust_answers": True}, GYM_EPISODES)
        for env_id in envs.ids()
        if env_id.startswith(UNSCORED)
    ]
    left = max(0, episodes - GYM_EPISODES * len(gym))
    total = sum(weight for _, _, weight in BUILT_IN)
    counts = [left * weight // total for _, _, weight in BUILT_IN]
    counts[0] += left - sum(counts)
    built_in = [
        (name, options, count) for (name, options, _), count in zip(BUILT_IN, counts, strict=True)
    ]
    return built_in + gym


async def live(name: str, options: dict[str, Any], count: int, seed: int) -> list[PropertyReport]:
    """Episodes that share services, some at a time."""
    env = envs.make(name, **options)
    # The library's own answers are no rule of play: a few tasks have none.
    has_gold = not env.env_id.startswith(UNSCORED)
    async with env.open_services(env.options) as services:
        shared = envs.make(name, services=services, **options)
        lived: list[PropertyReport] = []
        for start in range(0, count, AT_ONCE):
            some = range(start, min(start + AT_ONCE, count))
            games = [
                live_again(shared, random.Random(f"{seed} {name} {options} {i}"), has_gold)
                for i in some
            ]
            lived += await asyncio.gather(*games)
        return lived


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--only", default="", help="environments whose names begin with this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    rows, violations, began = [], [], time.perf_counter()
    for name, env_options, count in chosen(options.episodes):
        if not name.startswith(options.only):
            continue
        started = time.perf_counter()
        lived = loop_thread.run(live(name, env_options, count, options.seed))
        found = [what for one in lived for what in one.violations]
        violations += found
        turns = sum(one.num_turns for one in lived)
        seconds = round(time.perf_counter() - started, 1)
        rows.append(
            {
                "env": name,
                "options": env_options,
                "episodes": len(lived),
                "turns": turns,
                "violations": len(found),
                "seconds": seconds,
            }
        )
        print(f"{name} {env_options}: {len(lived)} episodes, {seconds} s", file=sys.stderr)
    result = {
        "benchmark": "env_properties",
        "commit": commit,
        "python": platform.python_version(),
        "seed": options.seed,
        "episodes": sum(row["episodes"] for row in rows),
        "turns": sum(row["turns"] for row in rows),
        "violations": violations,
        "seconds": round(time.perf_counter() - began, 1),
        "environments": rows,
    }
    # On a line of its own: a library prints while it draws.
    print("\n" + json.dumps(result))
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()

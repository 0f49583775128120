"""Waiting time of 256 and 1,000 concurrent episodes for a tool that takes 20 ms.

    python -m benchmarks.serving.rollout_wait [--episodes 256 1000] [--tool-ms 20] [--rounds 5]

Each episode has 1 or 11 turns with a scripted policy; each turn awaits a tool of 20 ms. The time of
a turn is the difference of the two collections, divided by 10 turns. The minimum is 20 ms;
sequential tools would take 256 x 20 ms = 5.1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import envs
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from rl.data.conversations import Conversation, Exchange
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.runtime.tiny import train_tokenizer


class WaitEnv(envs.TextEnv[int, float]):
    """Every turn awaits a tool; the task is how many milliseconds it takes."""

    def __init__(self, options: envs.EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, range(1000), services)

    def begin(self, task: int) -> str:
        """The task's milliseconds."""
        self.state = task / 1000
        return "wait"

    async def turn(self, action: envs.Action) -> envs.Reply:
        """One call of the tool."""
        await asyncio.sleep(self.state)
        return envs.go_on("again")


async def collect(turns: int, episodes: int, tool_ms: int, renderer: Renderer) -> float:
    """Seconds of one collection."""
    options = envs.EnvOptions(max_turns=turns)
    reply = [*renderer.splice("wait"), renderer.end_token_ids[0]]
    collector = Collector(
        EpisodeContext(
            env_id="wait-v0",
            options=options,
            services={},
            policy=ScriptedPolicy(lambda session, prompt: reply),
            renderer=renderer,
            sampling=SamplingParams(),
            limits=EpisodeLimits(context_length=4096),
        ),
    )
    started = time.perf_counter()
    await collector.collect([tool_ms], episodes, (0,))
    return time.perf_counter() - started


def turn_ms(episodes: int, tool_ms: int, renderer: Renderer) -> float:
    """Milliseconds of one turn of all episodes."""
    short = asyncio.run(collect(1, episodes, tool_ms, renderer))
    long = asyncio.run(collect(11, episodes, tool_ms, renderer))
    return (long - short) / 10 * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--tool-ms", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    envs.register("wait-v0", WaitEnv)
    renderer = Renderer(train_tokenizer([Conversation((Exchange("wait again", "wait"),))], 300))
    per_turn: dict[int, list[float]] = {episodes: [] for episodes in options.episodes}
    bookkeeping: dict[int, list[float]] = {episodes: [] for episodes in options.episodes}
    for _ in range(options.rounds):
        for episodes in options.episodes:
            per_turn[episodes].append(turn_ms(episodes, options.tool_ms, renderer))
            bookkeeping[episodes].append(turn_ms(episodes, 0, renderer))
    results = [
        {
            "episodes": episodes,
            "turn_ms_median": round(median(per_turn[episodes]), 1),
            "turn_ms_best": round(min(per_turn[episodes]), 1),
            "turn_ms_without_tool_median": round(median(bookkeeping[episodes]), 1),
        }
        for episodes in options.episodes
    ]
    print(json.dumps({"tool_ms": options.tool_ms, "results": results}))


if __name__ == "__main__":
    main()

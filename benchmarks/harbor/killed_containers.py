"""Plays episodes of a Harbor task at once, while containers are killed at random.

    python -m benchmarks.harbor.killed_containers TASK_FOLDER --episodes 64 --out killed.json

An episode must earn the reward of the reference solution or raise ``EnvFailure``; afterwards no
container may be left. Prints and writes the counts as JSON, and exits with 1 if a rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import envs
from envs.play import aplay, gold_of
from tools.sandbox.backends.docker import container, engine

KILLED_SHARE = 0.03
"""Probability with which a container is killed, twice a second."""


def listed(client: Any) -> list[str]:
    """Ids of this process's containers."""
    label = f"{container.OWNER_LABEL}={container.owner(os.getpid())}"
    return [one["Id"] for one in client.containers(all=True, filters={"label": label})]


async def kill_some(client: Any, seed: int, killed: list[str]) -> None:
    """Kill containers at random until cancelled."""
    import docker.errors

    rng = random.Random(seed)
    while True:
        for ident in await asyncio.to_thread(listed, client):
            if rng.random() < KILLED_SHARE:
                try:
                    await asyncio.to_thread(client.kill, ident)
                except docker.errors.APIError:
                    continue  # it has ended already
                killed.append(ident)
        await asyncio.sleep(0.5)


async def measure(folder: str, episodes: int, seed: int) -> dict[str, Any]:
    """Play all episodes at once, and count how they end and what they leave."""
    client, killed, started = engine.connect(), list[str](), time.monotonic()
    env = envs.make("harbor", tasks=folder, split="all")
    members = env.group(episodes)
    killing = asyncio.create_task(kill_some(client, seed, killed))
    try:
        played = await asyncio.gather(
            *(aplay(one, gold_of(one), seed=seed, task=0) for one in members),
            return_exceptions=True,
        )
    finally:
        killing.cancel()
        for one in members:
            await one.aclose()
        await env.aclose()
    seconds = time.monotonic() - started
    deadline = time.monotonic() + 60
    while listed(client) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    ends = Counter(
        type(one).__name__ if isinstance(one, BaseException) else f"reward {one.reward:g}"
        for one in played
    )
    left = len(listed(client))
    client.close()
    return {
        "episodes": episodes,
        "killed": len(killed),
        "ends": dict(sorted(ends.items())),
        "containers_left": left,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measure(str(given.folder), given.episodes, given.seed))
    print(json.dumps(found))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if found["containers_left"] or set(found["ends"]) - {"reward 1", "EnvFailure"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

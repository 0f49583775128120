"""Plays episodes of a Harbor task at once, while containers are killed at random.

    python -m benchmarks.harbor.killed_containers TASK_FOLDER --episodes 64 --out killed.json

An episode must earn the reward of the reference solution or raise ``EnvFailure``. Afterwards no
container may be left, no process of one, and no folder: of a container in the engine's data, of a
control group, or among the temporary files. Prints and writes the counts as JSON, and exits with 1
if a rule is broken. To see the engine's data, run the program as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import envs
from envs.play import aplay, gold_of
from tools.sandbox.backends.docker import container, engine

KILLED_SHARE = 0.1
"""Probability with which a container is killed, at most twice a second."""
CALL_S = 60
"""Time limit in seconds of a call of the engine, which is busy."""


def listed(client: Any) -> list[str]:
    """Ids of this process's containers."""
    label = f"{container.OWNER_LABEL}={container.owner(os.getpid())}"
    return [one["Id"] for one in client.containers(all=True, filters={"label": label})]


def processes_of(idents: set[str]) -> list[int]:
    """Processes in these containers, and those that the engine keeps for them."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "cgroup").read_text() + (folder / "cmdline").read_text()
        except OSError:
            continue  # it ended in between
        if any(ident in text for ident in idents):
            found.append(int(folder.name))
    return found


def folders_of(root: Path, idents: set[str]) -> set[Path]:
    """Folders of these containers, and all layers and temporary files."""
    groups = [*Path("/sys/fs/cgroup").glob("*/docker/*"), *Path("/sys/fs/cgroup").glob("docker/*")]
    places = [*groups, *(root / "containers").iterdir()]
    found = {place for place in places if place.name in idents}
    return found | {*(root / "overlay2").iterdir()} | {*Path(tempfile.gettempdir()).iterdir()}


async def kill_some(client: Any, seed: int, seen: set[str], killed: list[str]) -> None:
    """Kill containers at random until cancelled."""
    import docker.errors

    rng = random.Random(seed)
    while True:
        for ident in await asyncio.to_thread(listed, client):
            seen.add(ident)
            if rng.random() < KILLED_SHARE:
                try:
                    await asyncio.to_thread(client.kill, ident)
                except docker.errors.APIError:
                    continue  # it has ended already
                killed.append(ident)
        await asyncio.sleep(0.5)


async def measure(folder: str, episodes: int, seed: int) -> dict[str, Any]:
    """Play all episodes at once, and count how they end and what they leave."""
    client, killed, seen = engine.connect(), list[str](), set[str]()
    client.timeout = CALL_S
    root = Path(client.info()["DockerRootDir"])
    # The image is built before the folders are counted.
    env = envs.make("harbor", tasks=folder, split="all")
    await aplay(env, gold_of(env), seed=seed, task=0)
    while listed(client):
        await asyncio.sleep(0.2)
    before, started = folders_of(root, set()), time.monotonic()
    members = env.group(episodes)
    killing = asyncio.create_task(kill_some(client, seed, seen, killed))
    try:
        played = await asyncio.gather(
            *(aplay(one, gold_of(one), seed=seed, task=0) for one in members),
            return_exceptions=True,
        )
    finally:
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing  # raises if it failed before
        for one in members:
            await one.aclose()
        await env.aclose()
    seconds = time.monotonic() - started
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        folders = folders_of(root, seen) - before
        if not (listed(client) or processes_of(seen) or folders):
            break
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
        "containers_seen": len(seen),
        "containers_left": left,
        "processes_left": len(processes_of(seen)),
        "folders_left": sorted(map(str, folders)),
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
    with tempfile.TemporaryDirectory() as own:
        # Other processes use the common folder of temporary files.
        tempfile.tempdir = own
        found = asyncio.run(measure(str(given.folder), given.episodes, given.seed))
        tempfile.tempdir = None
    print(json.dumps(found))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    left = found["containers_left"] or found["processes_left"] or found["folders_left"]
    if left or set(found["ends"]) - {"reward 1", "EnvFailure"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

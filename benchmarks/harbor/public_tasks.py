"""Plays public Harbor tasks unchanged: the reference solution must earn 1 and an idle agent 0.

    python -m benchmarks.harbor.public_tasks FOLDER --sources repositories.txt --out harbor.json

FOLDER holds clones of repositories with task folders, each in a subfolder OWNER+NAME.
``repositories.txt`` has a line "OWNER+NAME COMMIT" for each. Prints a table, and writes JSON.

Where no registry can be reached, make a stand-in for the base images of the Dockerfiles first:

    debootstrap --variant=minbase bookworm root && tar -C root -c . | docker import - \
turnwise-base:bookworm
    cp stand_in.Dockerfile /etc/ssl/certs/ca-certificates.crt \
/etc/apt/sources.list.d/debian.sources CONTEXT
    docker build --network=host -f stand_in.Dockerfile -t python:3.12-slim CONTEXT

and tag the image ``python:3.11-slim``, ``python:3.13-slim``, ``python:3.11-bookworm`` and
``ubuntu:24.04`` too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import envs
from envs.play import aplay, gold_of


@dataclass(frozen=True)
class Row:
    """Result of one task."""

    task: str
    commit: str
    gold: float | None
    """Reward of the reference solution, or None if there is none."""
    empty: float | None
    """Reward of an agent that does nothing."""
    seconds: float
    why_not: str
    """Why the task gave no reward or another one than expected, or ""."""


async def measured(folder: Path, name: str, commit: str) -> Row:
    """Play one task with its reference solution and with an idle agent."""
    started, rewards, why = time.monotonic(), dict[str, float](), ""
    try:
        env = envs.make("harbor", tasks=str(folder), split="all", max_turns=60)
    except ValueError as error:
        return Row(name, commit, None, None, 0.0, line_of(error, folder))
    try:
        for kind in ("gold", "empty"):
            policy: Callable[[str], Any] = gold_of(env) if kind == "gold" else give_up
            try:
                played = await aplay(env, policy, seed=0, task=0)
                rewards[kind] = played.reward
            except (envs.EnvFailure, LookupError) as error:
                why = why or f"{kind}: {line_of(error, folder)}"
    finally:
        await env.aclose()
    if not why and rewards != {"gold": 1.0, "empty": 0.0}:
        why = "the solution does not earn 1, or an idle agent does not earn 0"
    seconds = round(time.monotonic() - started, 1)
    return Row(name, commit, rewards.get("gold"), rewards.get("empty"), seconds, why)


def give_up(observation: str) -> str:
    """The action of an agent that does nothing."""
    return "I give up."


def line_of(error: Exception, folder: Path) -> str:
    """An error's message in one line, without the path of the task's folder."""
    return " ".join(str(error).replace(str(folder), "TASK").split())[:300]


async def main() -> None:
    """Play all tasks one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    commits = dict(line.split() for line in given.sources.read_text().splitlines() if line.strip())
    rows = list[Row]()
    for config in sorted(given.folder.glob("**/task.toml")):
        name = config.parent.relative_to(given.folder).as_posix()
        row = await measured(config.parent, name, commits.get(name.split("/")[0], ""))
        rows.append(row)
        print(
            f"{row.task:60} {row.gold!s:5} {row.empty!s:5} {row.seconds:6.1f} {row.why_not}",
            flush=True,
        )
    passed = sum(row.gold == 1.0 and row.empty == 0.0 for row in rows)
    print(f"{passed} of {len(rows)} tasks: solution 1, idle agent 0")
    if given.out is not None:
        table = {"tasks": len(rows), "passed": passed, "rows": [asdict(row) for row in rows]}
        given.out.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())

"""``python killed_evaluations.py FOLDER CHANGES SECONDS SEED -- WORDS``: kill evaluations.

``rl.eval WORDS`` runs once without an end, in FOLDER/whole. Then it is killed CHANGES times just
before a random change of a file, and SECONDS times after a random time, each time in a folder of
its own, and run again to its end. Each evaluation prints one line of JSON. Processes are forks of
this one, which has imported all modules, so that they start at once.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import toy_envs
from killed_runs import child, die_after, die_before_change

import rl.eval
import rl.evaluation.comparison
import rl.evaluation.picture
import rl.runtime.endpoint

assert all((rl.evaluation.picture, rl.runtime.endpoint)), "what an evaluation imports only later"


def log_of_episodes(path: Path) -> Callable[[], None]:
    """Write a "b" to ``path`` at the begin of each episode, and an "e" at its end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begin, turn = toy_envs.CopyEnv.begin, toy_envs.CopyEnv.turn

    def counted(self, task):
        os.write(descriptor, b"b")
        return begin(self, task)

    def counted_turn(self, action):
        reply = turn(self, action)
        if self.turns_left == 1:
            os.write(descriptor, b"e")
        return reply

    def prepare() -> None:
        toy_envs.CopyEnv.begin, toy_envs.CopyEnv.turn = counted, counted_turn

    return prepare


def counted_changes(path: Path) -> Callable[[], None]:
    """Write a byte to ``path`` for each change of a file that :func:`die_before_change` counts."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def prepare() -> None:
        from killed_runs import CHANGES

        def hook(event: str, arguments: tuple) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o3
            if writes or event in CHANGES:
                os.write(descriptor, b".")

        sys.addaudithook(hook)

    return prepare


def saved(folder: Path) -> int:
    """The number of complete episodes that an evaluation's folders hold."""
    count = 0
    for path in (folder, folder / "compare"):
        lines = path / "played.jsonl"
        if (path / "trajectories.jsonl.gz").exists() and not lines.exists():
            count += 16
        elif lines.exists():
            count += lines.read_bytes().count(b"\n")
    return count


def evaluate(folder: Path, words: list[str], *prepare: Callable[[], None]) -> tuple[int, str]:
    """The exit code of an evaluation in ``folder``, and its log of episodes."""
    log = folder.with_suffix(".episodes")
    log.unlink(missing_ok=True)
    count = log_of_episodes(log)
    code = child([*words, f"out={folder}"], lambda: [f() for f in (count, *prepare)], rl.eval.main)
    return code, log.read_text()


def main(folder: Path, changes: int, seconds: int, seed: int, words: list[str]) -> None:
    """Print a line for the whole evaluation, and one for each that was killed."""
    answers, sys.stdout = sys.stdout, sys.stderr
    began = time.monotonic()
    log = folder / "changes"
    code, played = evaluate(folder / "whole", words, counted_changes(log))
    took, most = time.monotonic() - began, log.stat().st_size
    answers.write(json.dumps({"code": code, "played": played.count("b"), "changes": most}) + "\n")
    rng = random.Random(seed)
    instants = [("change", rng.randint(1, most)) for _ in range(changes)]
    instants += [("second", rng.uniform(0.05, took)) for _ in range(seconds)]
    for kind, instant in instants:
        here = folder / f"{kind}-{instant}"
        kill = die_before_change if kind == "change" else die_after
        killed, before = evaluate(here, words, lambda k=kill, i=instant: k(i))
        kept = saved(here)
        code, again = evaluate(here, words)
        answer = {"out": str(here), "killed": killed, "ended": before.count("e"), "kept": kept}
        answers.write(json.dumps({**answer, "code": code, "again": again.count("b")}) + "\n")
        answers.flush()


if __name__ == "__main__":
    split = sys.argv.index("--")
    where, *numbers = sys.argv[1:split]
    main(Path(where), *map(int, numbers), sys.argv[split + 1 :])

"""A run of search-qa over a vLLM server, staleness=2, with every kind of fault injected.

    python -m benchmarks.serving.chaos [--minutes 30] [--seed 0] [--python INTERPRETER_WITH_VLLM]

At random times the server is killed ten times and stopped twice (SIGSTOP), connections are cut six
times, the learner is killed twice (SIGKILL) and the disk is full once. A run that ended is started
again with ``resume=auto``. At the end the run is stopped and its files are checked: every task
entered exactly one update (:mod:`benchmarks.serving.task_ledger`), no failed episode has a reward,
``rl.replay`` reproduces the weights bit for bit from the recorded episodes, and no process or
shared memory remains. Then undisturbed runs with other seeds make the same number of steps. The
reward over the last quarter must lie within their 95% prediction interval. Writes
``results/chaos.json``. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.serving.chaos_faults import (
    SHARED_MEMORY,
    Census,
    Disk,
    cut_connections,
    hang_server,
    kill_server,
    servers_of,
)
from benchmarks.serving.task_ledger import last_step, read_ledger
from benchmarks.train_runs import finished_run
from rl.run.folder import read_jsonl, versions

RESULTS = Path(__file__).parents[1] / "results" / "chaos.json"
FAULTS = {
    "kill the server": 10,
    "cut connections": 6,
    "hang a server": 2,
    "kill the learner": 2,
    "fill the disk": 1,
}
WORDS = ("env=search-qa", "env.hops=2", "prompts=16", "eval.every=20", "eval.test_tasks=0")
ASKED = ("policy=vllm-server", "policy.stall_s=15", "policy.load_s=60", "staleness=2")
ASKED += ("steps=100000", "save_every=2", "resume=auto")
MEGABYTES = 512
PROGRESS = 2
"""Steps that a run must make after each fault before the next one."""
GONE_S = 60.0
"""Seconds within which all processes must be gone after a run or a killed learner."""
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}
"""Quantiles (97.5%) of Student's distribution by degrees of freedom."""


@dataclass
class Chaos:
    """A disturbed run: starts it, starts it again, and keeps a record.

    Args:
        words: of the command line, without ``out``.
        disk: where its folder lies.
        seed: of what happens when.
        patience_s: in which a run must make its next step, whatever happened to it.
    """

    words: Sequence[str]
    disk: Disk
    seed: int = 0
    patience_s: float = 900.0
    happened: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Violations, one line each."""

    def __post_init__(self) -> None:
        self.out = self.disk.folder / "run"
        self.log = self.disk.folder.parent / "chaos.log"
        self._rng = random.Random(self.seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    def play(self, faults: Mapping[str, int], minutes: float) -> int:
        """Inject the given numbers of faults at random times; return the last step."""
        kinds = [kind for kind, count in faults.items() for _ in range(count)]
        self._rng.shuffle(kinds)
        times = sorted(self._rng.uniform(0, 60 * minutes) for _ in kinds)
        try:
            self._start()
            self._progress()
            for kind, at_s in zip(kinds, times, strict=True):
                time.sleep(max(0.0, self._began + at_s - time.monotonic()))
                # Also where a step is short: not always at its beginning.
                time.sleep(self._rng.uniform(0, 1.5))
                self._befall(kind)
            self._stop()
        finally:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        return last_step(self.out)

    def _befall(self, kind: str) -> None:
        assert self._process is not None
        pid, before, began = self._process.pid, self._step(), time.monotonic()
        what = self._ways()[kind](pid)
        after = self._progress()
        record = {"what": kind, "how": what, "at_s": round(began - self._began, 1)}
        self.happened.append(
            record | {"step": before, "two_steps_s": round(after - began, 1) if after else None}
        )

    def _ways(self) -> dict[str, Callable[[int], str]]:
        return {
            "kill the server": lambda pid: kill_server(pid, self._rng),
            "cut connections": lambda pid: cut_connections(pid, self._rng),
            "hang a server": lambda pid: hang_server(pid, self._rng),
            "kill the learner": self._kill_learner,
            "fill the disk": self._fill_disk,
        }

    def _kill_learner(self, pid: int) -> str:
        assert self._process is not None
        left = servers_of(pid)
        self._process.kill()
        self._process.wait()
        self._start()
        return f"SIGKILL, with {len(left)} processes of its server"

    def _fill_disk(self, pid: int) -> str:
        how = self.disk.fill(pid)
        assert self._process is not None
        try:
            code = self._process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self.wrong.append("a full disk did not end the run, nor did it go on")
            self._process.kill()
            code = self._process.wait()
        last = self.log.read_text(errors="replace").splitlines()[-1]
        if code != 1 or not last.startswith("error: ") or "cannot be" not in last:
            self.wrong.append(f"a full disk ended the run with {code}, saying: {last}")
        self.disk.free()
        self._start()
        return f"{how}: {last.replace(str(self.disk.folder), '')}"

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rl.train", *self.words, f"out={self.out}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self.wrong.append("it did not end when it was asked to")
            return
        if code != 130:
            self.wrong.append(f"it ended with {code} when it was asked to stop")
        if "Traceback" in self.log.read_text(errors="replace"):
            self.wrong.append("there is a traceback in its log")

    def _progress(self) -> float | None:
        """Wait for ``PROGRESS`` steps from now on; when they were there, or None: they were not."""
        assert self._process is not None
        reported, end = self._reported(), time.monotonic() + self.patience_s
        while time.monotonic() < end:
            if len(self._reported()) >= len(reported) + PROGRESS:
                return time.monotonic()
            if (code := self._process.poll()) is not None:
                last = self.log.read_text(errors="replace").splitlines()[-1:]
                self.wrong.append(f"it ended with {code}, saying: {last}")
                self._start()
            time.sleep(0.1)
        self.wrong.append(f"no {PROGRESS} steps came within {self.patience_s:g} s")
        return None

    def _step(self) -> int:
        """The last step that was done."""
        return max(self._reported()[-1:], default=0)

    def _reported(self) -> list[int]:
        """Every reported step, including repeated ones."""
        text = self.log.read_text(errors="replace")
        return [int(step) for step in re.findall(r"^step (\d+)/", text, re.MULTILINE)]


def disturbed(
    folder: Path,
    words: Sequence[str],
    faults: Mapping[str, int],
    *,
    minutes: float,
    seed: int,
    patience_s: float = 900.0,
) -> dict[str, Any]:
    """A run to which ``faults`` happen, and all that its files, processes and memory say of it.

    Args:
        folder: where it and its log are kept.
        words: of the command line, beside those that make it what it is.
        faults: how often each kind happens.
        minutes: over how long.
        seed: of what happens when.
        patience_s: as of :class:`Chaos`.

    Returns:
        The report; ``wrong`` in it is empty where all is as it should be.
    """
    weights = Path(tempfile.mkdtemp(prefix="chaos-", dir=SHARED_MEMORY))
    disk, census = Disk(folder / "disk", MEGABYTES), Census()
    try:
        chaos = Chaos([*words, *ASKED, f"policy.weights={weights}"], disk, seed, patience_s)
        began = time.monotonic()
        steps = chaos.play(faults, minutes)
        seconds = time.monotonic() - began
        left = {**census.left(GONE_S), "weights": sorted(path.name for path in weights.iterdir())}
        ledger, replay = read_ledger(chaos.out), replayed(chaos.out)
        shutil.copytree(chaos.out, folder / "run")
    finally:
        census.close()
        disk.close()
        shutil.rmtree(weights, ignore_errors=True)
    wrong = [*chaos.wrong, *ledger.wrong]
    wrong += [f"left: {kind}: {names}" for kind, names in left.items() if names]
    if not replay.get("equal"):
        wrong.append(f"the recorded episodes make other weights: {replay}")
    records = [r for r in read_jsonl(folder / "run" / "metrics.jsonl") if "loss" in r]
    return {
        "command": " ".join(["python -m rl.train", *words, *ASKED]),
        "seconds": round(seconds, 1),
        "steps": steps,
        "happened": chaos.happened,
        "ledger": {k: v for k, v in ledger.to_json().items() if k != "wrong"},
        "restarts": sum(r["policy/restarts"] for r in records),
        "reissued": sum(r["policy/reissued"] for r in records),
        "replay": replay,
        "left": left,
        "wrong": wrong,
    }


def replayed(run: Path) -> dict[str, Any]:
    """The result of ``rl.replay`` for a run."""
    words = [sys.executable, "-m", "rl.replay", f"run={run}"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=3600, check=False)
    if not said.stdout.startswith("{"):
        return {"error": said.stderr[-500:]}
    found = json.loads(said.stdout)
    return {key: found[key] for key in ("steps", "equal", "max_difference")}


def last_rewards(run: Path, steps: int) -> float:
    """The mean reward over the last quarter of a run's first ``steps``."""
    rewards = [r["reward"] for r in read_jsonl(run / "metrics.jsonl") if "loss" in r][:steps]
    return fmean(rewards[-max(steps // 4, 1) :])


def predicted(values: Sequence[float]) -> tuple[float, float]:
    """Interval that contains a further value of the same kind with probability 0.95."""
    count = len(values)
    wide = STUDENT[count - 1] * stdev(values) * sqrt(1 + 1 / count)
    return fmean(values) - wide, fmean(values) + wide


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--undisturbed", type=int, default=3, choices=(0, 2, 3, 4, 5))
    parser.add_argument("--python", default="", help="the interpreter that has vLLM")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    own = [f"policy.python={asked.python}"] if asked.python else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        words = [*WORDS, *own, f"seed={asked.seed}"]
        result = disturbed(folder, words, FAULTS, minutes=asked.minutes, seed=asked.seed)
        steps, others = result["steps"], []
        for number in range(1, asked.undisturbed + 1):
            out = folder / f"undisturbed-{number}"
            same = [*WORDS, *own, *ASKED[:-3], f"steps={steps}", f"seed={asked.seed + number}"]
            finished_run("rl.train", same, out)
            others.append(last_rewards(out, steps))
        if others:
            mine, (low, high) = last_rewards(folder / "run", steps), predicted(others)
            result["reward"] = {"disturbed": mine, "undisturbed": others, "predicted": [low, high]}
            if not low <= mine <= high:
                result["wrong"].append(f"the reward {mine:.3f} is not in {low:.3f} to {high:.3f}")
    result["command"] = result["command"].replace(f" {own[0]}" if own else "\0", "")
    print(json.dumps(result, indent=2))
    asked.out.write_text(json.dumps({**versions(), "seed": asked.seed, **result}, indent=2) + "\n")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

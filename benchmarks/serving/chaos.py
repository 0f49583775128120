"""A run of search-qa over a vLLM server, staleness=2, with every kind of fault injected.

    python -m benchmarks.serving.chaos [--minutes 30] [--seed 0] [--python INTERPRETER_WITH_VLLM]
    python -m benchmarks.serving.chaos --cluster [--minutes 20] ...

At random times the server is killed ten times and stopped twice (SIGSTOP), connections are cut six
times, the learner is killed twice (SIGKILL) and the disk is full once. A run that ended is started
again with ``resume=auto``. At the end the run is stopped and its files are checked: every task
entered exactly one update (:mod:`benchmarks.serving.task_ledger`), no failed episode has a reward,
``rl.replay`` reproduces the weights bit for bit from the recorded episodes, and no process or
shared memory remains. Then undisturbed runs with other seeds make the same number of steps. The
reward over the last quarter must lie within their 95% prediction interval. Writes
``results/chaos.json``. The exit code is 1 if a check fails.

With ``--cluster``, Ray places two servers and two ranks of the learner on another machine
(:mod:`benchmarks.serving.far_machine`), which is cut off twice for good and twice for a moment. Its
servers and ranks are killed and stopped, too. The undisturbed runs are on this machine alone. Needs
Ray, and root. Writes ``results/chaos_cluster.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.serving.chaos_faults import SHARED_MEMORY, Census, Disk
from benchmarks.serving.chaos_run import NOWHERE, Chaos, Elsewhere
from benchmarks.serving.task_ledger import read_ledger
from benchmarks.train_runs import finished_run
from rl.run.folder import read_jsonl, versions

RESULTS = Path(__file__).parents[1] / "results"
WORDS = ("env=search-qa", "env.hops=2", "prompts=16", "eval.every=20", "eval.test_tasks=0")
ASKED = ("policy=vllm-server", "policy.stall_s=15", "policy.load_s=60", "staleness=2")
ASKED += ("steps=100000", "save_every=2", "resume=auto")
MEGABYTES = 512


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens to which run.

    Args:
        faults: how often each kind happens.
        words: of the command line, beside ``WORDS`` and ``ASKED``.
        elsewhere: opens the run's other machines, given a folder for their logs.
    """

    faults: Mapping[str, int]
    words: Sequence[str] = ()
    elsewhere: Callable[[Path], AbstractContextManager[Elsewhere]] = lambda _: nullcontext(NOWHERE)


ONE_MACHINE = Plan(
    faults={
        "kill the server": 10,
        "cut connections": 6,
        "hang a server": 2,
        "kill the learner": 2,
        "fill the disk": 1,
    }
)
GONE_S = 60.0
"""Seconds within which all processes must be gone after a run or a killed learner."""
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}
"""Quantiles (97.5%) of Student's distribution by degrees of freedom."""


def disturbed(
    folder: Path,
    words: Sequence[str],
    plan: Plan,
    *,
    minutes: float,
    seed: int,
    patience_s: float = 900.0,
) -> dict[str, Any]:
    """A run to which a plan's faults happen, and what its files, processes and memory say of it.

    Args:
        folder: where it and its log are kept.
        words: of the command line, beside those that make it what it is.
        plan: the faults, and where the run is.
        minutes: over how long.
        seed: of what happens when.
        patience_s: as of :class:`Chaos`.

    Returns:
        The report; ``wrong`` in it is empty where all is as it should be.
    """
    weights = Path(tempfile.mkdtemp(prefix="chaos-", dir=SHARED_MEMORY))
    asked = [*words, *plan.words, *ASKED]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, weights, ignore_errors=True)
        disk = stack.enter_context(closing(Disk(folder / "disk", MEGABYTES)))
        # After the disk: a machine sees those that were there when it was started.
        elsewhere = stack.enter_context(plan.elsewhere(folder))
        census = stack.enter_context(closing(Census()))
        chaos = Chaos([*asked, f"policy.weights={weights}"], disk, elsewhere, seed, patience_s)
        began = time.monotonic()
        steps = chaos.play(plan.faults, minutes)
        seconds = time.monotonic() - began
        left = {**census.left(GONE_S), "weights": sorted(path.name for path in weights.iterdir())}
        left |= elsewhere.left()
        ledger, replay = read_ledger(chaos.out), replayed(chaos.out)
        shutil.copytree(chaos.out, folder / "run")
    wrong = [*chaos.wrong, *ledger.wrong]
    wrong += [f"left: {kind}: {names}" for kind, names in left.items() if names]
    if not replay.get("equal"):
        wrong.append(f"the recorded episodes make other weights: {replay}")
    records = [r for r in read_jsonl(folder / "run" / "metrics.jsonl") if "loss" in r]
    return {
        "command": " ".join(["python -m rl.train", *asked, *elsewhere.words]),
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
    """The result of ``rl.replay`` for a run, with its ranks on this machine."""
    words = [sys.executable, "-m", "rl.replay", f"run={run}", "here=true"]
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
    parser.add_argument("--cluster", action="store_true", help="with ranks and another machine")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--undisturbed", type=int, default=3, choices=(0, 2, 3, 4, 5))
    parser.add_argument("--python", default="", help="the interpreter that has vLLM")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    plan = ONE_MACHINE
    if asked.cluster:
        from benchmarks.serving.chaos_cluster import CLUSTER as plan  # needs root
    own = [f"policy.python={asked.python}"] if asked.python else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        words = [*WORDS, *own, f"seed={asked.seed}"]
        result = disturbed(folder, words, plan, minutes=asked.minutes, seed=asked.seed)
        steps, others = result["steps"], []
        for number in range(1, asked.undisturbed + 1):
            out = folder / f"undisturbed-{number}"
            same = [*WORDS, *own, *plan.words, *ASKED[:-3], f"steps={steps}"]
            finished_run("rl.train", [*same, f"seed={asked.seed + number}"], out)
            others.append(last_rewards(out, steps))
        if others:
            mine, (low, high) = last_rewards(folder / "run", steps), predicted(others)
            result["reward"] = {"disturbed": mine, "undisturbed": others, "predicted": [low, high]}
            if not low <= mine <= high:
                result["wrong"].append(f"the reward {mine:.3f} is not in {low:.3f} to {high:.3f}")
    result["command"] = result["command"].replace(f" {own[0]}" if own else "\0", "")
    print(json.dumps(result, indent=2))
    out = asked.out or RESULTS / ("chaos_cluster.json" if asked.cluster else "chaos.json")
    out.write_text(json.dumps({**versions(), "seed": asked.seed, **result}, indent=2) + "\n")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Predicted and measured seconds of a step: is the model of docs/scaling.md right within 15%?

    OMP_NUM_THREADS=1 python -m benchmarks.scaling.plan [--repeats 3] [--out FOLDER] [--lock FILE]

Trains ``model=tiny`` with ``policy=local`` and one thread for a few steps under several settings,
from the same weights. Two settings are fitted: their costs and their episodes are all that the
prediction of the other settings knows, except for their words. The last row checks the costs alone:
its answers are longer, and its episodes are read from its own runs.

The clock of these runs counts the processor seconds of the process. Without staleness one thread
works at a time and nothing sleeps, so that these seconds are those of an idle machine, while other
programs use the processors. Through caches and shared cores, other programs still lengthen them:
``spread`` is the largest ratio of two equal settings' steps, and an error below it proves little.
Each round runs every setting once. The figures are medians over the steps of all rounds.
Writes ``results/plan.json``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rl.planning.costs import Costs, fit_costs
from rl.planning.recorded import Recorded, read_recorded
from rl.planning.step_time import Setup, StepTime, Work, predict
from rl.run.folder import versions

RESULTS = Path(__file__).parents[1] / "results" / "plan.json"
STEPS = 5
LIMIT_S = 1800.0
COMMON = (
    *("threads=1", f"steps={STEPS}", "eval.tasks=0", "eval.test_tasks=0", "save_every=1000"),
    *("optimizer.lr=1e-5", "policy=local"),
)
WARM = (
    *("steps=2", "prompts=8", "threads=1", "eval.tasks=0", "eval.test_tasks=0"),
    *("tiny.demonstrations=800", "tiny.steps=150", "tiny.warmup_steps=10"),
)
FITTED = {
    "64 slots": ("env=search-qa", "prompts=16", "sampling.slots=64"),
    "16 slots": ("env=search-qa", "prompts=16", "sampling.slots=16"),
}
PREDICTED = {
    "half the slots": ("env=search-qa", "prompts=16", "sampling.slots=32"),
    "twice the tasks": ("env=search-qa", "prompts=32", "sampling.slots=64"),
    "groups of 16": ("env=search-qa", "prompts=8", "group_size=16", "sampling.slots=64"),
}
OTHER_EPISODES = {
    "longer answers": (
        *("env=search-qa", "prompts=16", "sampling.slots=64"),
        *("sampling.temperature=1.5", "sampling.max_tokens=128"),
    )
}


class ProcessorClock:
    """The module ``time``, but its clocks count the processor seconds of this process."""

    perf_counter = staticmethod(time.process_time)
    monotonic = staticmethod(time.process_time)


def train(words: Sequence[str], out: Path) -> None:
    """Train in this process by the processor's clock."""
    import rl.rollout.episode
    import rl.train
    from rl.run.process.activity import Activities

    rl.rollout.episode.time = ProcessorClock  # type: ignore[assignment]
    rl.train.Activities = partial(Activities, time.process_time)  # type: ignore[misc,assignment]
    status = rl.train.main([*words, f"out={out}"])
    if status:
        raise SystemExit(status)


@contextmanager
def held(lock: Path | None) -> Iterator[None]:
    """Hold the lock of a file, so that other programs that also take it do not run."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(words: Sequence[str], out: Path, lock: Path | None) -> None:
    """Train in a process of its own; a finished run is not repeated."""
    if (out / "result.json").exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with held(lock), (out.parent / f"{out.name}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.scaling.plan", "--train", str(out), *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
            timeout=LIMIT_S,
        )


def measured(runs: Sequence[Recorded]) -> dict[str, float]:
    """Medians over the steps of all rounds."""
    steps = [step for one in runs for step in one.steps]
    return {
        "step_s": median(step.wall_s for step in steps),
        "rollouts_s": median(step.rollout_s for step in steps),
        "learn_s": median(step.learn_s for step in steps),
        "controller_s": median(step.other_s for step in steps),
    }


def pooled_work(runs: Sequence[Recorded]) -> Work:
    """What the episodes of runs with equal settings ask for."""
    groups = [group for one in runs for group in one.groups]
    steps = [step for one in runs for step in one.steps]
    tokens = sum(step.learned_tokens for step in steps)
    return Work(groups, tokens / len(groups), max(step.longest_row for step in steps))


def setup_of(one: Recorded) -> Setup:
    """The settings of a run, which are all that a prediction reads of it."""
    return Setup(one.samplers, 1, one.prompts, one.staleness, one.slots, one.micro_batch_tokens)


def regrouped(work: Work, group_size: int) -> Work:
    """The work with groups of another size. Neighbouring groups are joined or divided."""
    factor = group_size / work.group_size
    episodes = [episode for group in work.groups for episode in group]
    size = group_size
    groups = [episodes[i : i + size] for i in range(0, len(episodes) - size + 1, size)]
    return Work(groups, work.learned_tokens * factor, work.longest_row)


def row(found: Mapping[str, float], predicted: StepTime) -> dict[str, Any]:
    """A line of the result."""
    parts = predicted.parts
    made = {
        "step_s": predicted.step_s,
        "rollouts_s": predicted.wait_s,
        "learn_s": parts["learn"],
        "controller_s": parts["controller"],
    }
    return {
        "measured": found,
        "predicted": made,
        "error": made["step_s"] / found["step_s"] - 1,
        "errors": {name: made[name] / found[name] - 1 for name in made},
    }


def measure(folder: Path, repeats: int, lock: Path | None) -> dict[str, Any]:
    """Run every setting ``repeats`` times, fit, and predict."""
    settings = {**FITTED, **PREDICTED, **OTHER_EPISODES}
    for words in {words[0] for words in settings.values()}:
        run((words, *WARM), folder / f"warm-{words.removeprefix('env=')}", lock)
    for number in range(repeats):
        for name, words in settings.items():
            env = words[0].removeprefix("env=")
            model = folder / f"warm-{env}" / "checkpoints" / "step-000002"
            more = (f"model={model}", f"seed={number}")
            run((*COMMON, *words, *more), _out(folder, name, number), lock)
    runs = {n: [read_recorded(str(_out(folder, n, i))) for i in range(repeats)] for n in settings}
    rows, costs = compared(runs, settings)
    return {
        "rows": rows,
        "worst": worst(rows),
        "spread": max(spread(own) for own in runs.values()),
        "costs": asdict(costs),
        "repeats": repeats,
        "steps": STEPS - 1,
        "load": os.getloadavg()[0],
        "versions": versions(),
    }


def compared(
    runs: Mapping[str, Sequence[Recorded]], settings: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], Costs]:
    """A row for each setting, and the costs of the fitted ones."""
    fitted = [one for name in FITTED for one in runs[name]]
    costs = fit_costs(fitted)
    rows = {}
    for name in settings:
        own = name in OTHER_EPISODES
        work = pooled_work(runs[name] if own else fitted)
        if runs[name][0].group_size != round(work.group_size):
            work = regrouped(work, runs[name][0].group_size)
        predicted = predict(work, costs, setup_of(runs[name][0]))
        kind = "fitted" if name in FITTED else "own episodes" if own else "predicted"
        rows[name] = {"kind": kind, "words": settings[name]} | row(measured(runs[name]), predicted)
    return rows, costs


def worst(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """The largest error of a step that was not fitted."""
    return max(abs(one["error"]) for one in rows.values() if one["kind"] != "fitted")


def spread(runs: Sequence[Recorded]) -> float:
    """The slowest step of a setting, as a multiple of the quickest."""
    seconds = [step.wall_s for one in runs for step in one.steps]
    return max(seconds) / min(seconds)


def _out(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name.replace(' ', '-').replace('=', '-')}-{number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lock", type=Path, help="a file whose lock is held during each run")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args()
    if given.train is not None:
        train(given.words, given.train)
        return
    with tempfile.TemporaryDirectory() as temporary:
        result = measure(given.out or Path(temporary), given.repeats, given.lock)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["rows"], indent=2))


if __name__ == "__main__":
    main()

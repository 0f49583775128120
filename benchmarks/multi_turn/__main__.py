"""``python -m benchmarks.multi_turn --trainer turnwise``: the learning curve of a trainer.

For each game and seed: train within the budget, evaluate the checkpoints that the trainer handed in
on held-out tasks, and write everything to a JSON file. docs/multi-turn-benchmark.md has the rules.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .curves import chosen, summary
from .games import GAMES, expert_success
from .harness import Training, train
from .job import Job

TRAINERS = Path(__file__).with_name("trainers")
RESULTS = Path(__file__).parents[1] / "results" / "multi_turn"
MARKS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the budget at which the curve is measured."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if not (arguments.tokens or arguments.seconds):
        arguments.tokens = 100_000
    name = Path(shlex.split(arguments.trainer)[0]).stem
    record = {"trainer": name, "games": {}, **_conditions(arguments)}
    for game in arguments.games:
        record["games"][game] = _measure(arguments, name, game)
        print(json.dumps({game: record["games"][game]["summary"]}), file=sys.stderr)
    out = Path(arguments.out) if arguments.out else RESULTS / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi_turn", description=__doc__)
    own = ", ".join(sorted(path.stem for path in TRAINERS.glob("[a-z]*.py")))
    parser.add_argument("--trainer", required=True, help=f"one of {own}; or a command line")
    parser.add_argument("--games", nargs="+", default=[*GAMES], choices=[*GAMES])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--tokens", type=int, default=0, help="sampled tokens of a training")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds of a training")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--model", default="", help="a model to start from, instead of the small one"
    )
    parser.add_argument("--out", default="", help="the JSON file of the results")
    return parser


def _measure(arguments: argparse.Namespace, name: str, game: str) -> dict:
    """All seeds of one game."""
    from .models import PLAY, start_model, success, write_tasks

    runs = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = arguments.model or start_model(game, work)
        before = success(model, game, work, arguments.threads)
        for seed in range(arguments.seeds):
            job = Job(
                game=game,
                model=model,
                tasks=str(write_tasks(game, "train", work)),
                play=PLAY,
                seed=seed,
                tokens=arguments.tokens,
                seconds=arguments.seconds,
                threads=arguments.threads,
                out=str(work / f"seed-{seed}"),
            )
            training = train(_command(arguments.trainer), job)
            curve = [
                {
                    "mark": mark,
                    "seconds": round(point.seconds, 1),
                    "tokens": point.tokens,
                    "episodes": point.episodes,
                    "success": success(point.model, game, work, arguments.threads),
                }
                for mark, point in chosen(training.points, MARKS, job)
            ]
            runs.append({"seed": seed, "curve": curve, **_spent(training)})
            print(f"{name} {game} seed {seed}: {json.dumps(runs[-1])}", file=sys.stderr)
    return {
        "expert": expert_success(game, 0.0),
        "before": before,
        "runs": runs,
        "summary": summary(before, runs, MARKS),
    }


def _command(trainer: str) -> list[str]:
    """The command of a trainer: a program of this folder by its name, or the user's own words."""
    if (TRAINERS / f"{trainer}.py").is_file():
        return [sys.executable, "-m", f"benchmarks.multi_turn.trainers.{trainer}"]
    return shlex.split(trainer)


def _spent(training: Training) -> dict:
    return {
        "seconds": round(training.seconds, 1),
        "tokens": training.tokens,
        "episodes": training.episodes,
        "peak_mib": round(training.peak_mib),
        "peak_gpu_mib": round(training.peak_gpu_mib),
        "points": len(training.points),
    }


def _conditions(arguments: argparse.Namespace) -> dict:
    """What the numbers depend on, apart from the trainer."""
    from rl.run.folder import versions

    names = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    processor = next((n.partition(":")[2].strip() for n in names if n.startswith("model name")), "")
    return {
        "budget": {"tokens": arguments.tokens, "seconds": arguments.seconds},
        "threads": arguments.threads,
        "seeds": arguments.seeds,
        "machine": {"processor": processor, "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "versions": versions(),
    }


if __name__ == "__main__":
    sys.exit(main())

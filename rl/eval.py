"""``python -m rl.eval model=FOLDER env=code-sandbox``: measures how often a model succeeds."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rl.files import discard_if_refused, make_folder, replace_text, write_stdout, writing
from rl.run.evaluation_table import table_text
from rl.run.process.activity import Activities
from rl.run.process.command import answer, run_command
from rl.run.screen import Screen
from rl.run.splits import tasks_to_play
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain
from rl.settings.run import run_path

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.tracking.callback import Callback


async def evaluate(
    config: EvaluateConfig, screen: Screen, callbacks: Sequence[Callback] = ()
) -> tuple[dict[str, object], list[TrajectoryGroup]]:
    """Play the episodes of an evaluation.

    Args:
        config: the settings.
        screen: shows the progress.
        callbacks: callbacks in addition to those that ``config`` names.

    Returns:
        A dict of the success with its 95% interval and the metrics of the episodes; and the
        episodes.

    Raises:
        UsageError: the data, the model or an option of the environment is unusable.
    """
    played = tasks_to_play(config)
    times = f", each {config.episodes} times" if config.episodes > 1 else ""
    screen.report(f"playing {played}{times}, policy {config.policy.name}")
    # These load torch; the first lines do not wait for it.
    from rl.run.metrics.episodes import rollout_metrics, success_of
    from rl.runtime import EVALUATE, open_runtime
    from rl.tracking.sink import RunInfo
    from rl.tracking.tracker import Tracker

    activities = Activities(on_count=screen.count)
    run = RunInfo("eval", Path(config.out or "."), as_values(to_plain(config)))
    tracker = Tracker(run, config, (), screen.report, callbacks)
    logs = Path(config.out) / "logs" if config.out else None
    async with tracker, open_runtime(config, screen.report, logs, activities=activities) as runtime:
        runtime.on_evaluated = tracker.evaluated
        await asyncio.to_thread(tracker.open)
        rate, groups = await runtime.evaluate(
            played.split, played.tasks, EVALUATE, config.sampling_params, config.episodes
        )
        by_task = [[success_of(t, runtime.success_score) for t in g.finished] for g in groups]
        result: dict[str, object] = {
            "env": config.env.env_id,
            "model": config.model,
            "split": played.split,
            "tasks": played.tasks,
            "played": str(played),
            "score": runtime.success_score or "return",
            "success": rate.rate,
            "success_low": rate.low,
            "success_high": rate.high,
            "interval_of": _population(played.tasks, config.episodes),
            "episodes": rate.count,
            **_pass_at_k([s for s in by_task if s], runtime.best_success(played.split)),
            **rollout_metrics(groups, runtime.success_score),
            **await runtime.service_metrics.take(),
        }
        tracker.log({"step": 0, **result})
        await asyncio.to_thread(tracker.call, {"step": 0, **result})
        tracker.finish(result)
    return result, groups


def _population(tasks: int, episodes: int) -> str:
    """The population of tasks for which the success has its 95% interval, in words."""
    clustered = f", each played {episodes} times" if episodes > 1 else ""
    return f"tasks like these {tasks}{clustered}: it widens with the differences between tasks"


def _pass_at_k(by_task: list[list[float]], best: float) -> dict[str, float]:
    """``pass@K`` for K = 1, 2, 4, ... up to the smallest number of episodes of a task.

    Args:
        by_task: the successes of each task's episodes.
        best: the success of a right episode.
    """
    from statistics import fmean

    from rl.run.metrics.intervals import ROUNDING, pass_at_k

    least = min((len(successes) for successes in by_task), default=1)
    counts = [
        (len(successes), sum(s >= best - ROUNDING for s in successes)) for successes in by_task
    ]
    powers = [2**i for i in range(least.bit_length())] if least > 1 else []
    return {f"pass@{k}": fmean(pass_at_k(n, right, k) for n, right in counts) for k in powers}


async def measure(config: EvaluateConfig) -> tuple[dict[str, object], list[TrajectoryGroup]]:
    """Create the folder of ``config`` and run :func:`evaluate` with progress on the screen."""
    with ExitStack() as stack:
        if config.out:
            folder = run_path(config.out, config)
            stack.enter_context(discard_if_refused(folder))
            make_folder(folder)
        screen = stack.enter_context(Screen())
        screen.report(f"evaluation of {config.model} in {config.env.env_id}")
        return await evaluate(config, screen)


def write_evaluation(
    config: EvaluateConfig, result: Mapping[str, object], groups: Sequence[TrajectoryGroup]
) -> None:
    """Write the result and the episodes into the folder of ``config``, if it names a folder.

    Raises:
        RunFailure: a file cannot be written.
    """
    from rl.rollout.trajectory_files import write_trajectories

    if not config.out:
        return
    folder = run_path(config.out, config)
    with writing(folder):
        write_trajectories(folder / "trajectories.jsonl.gz", groups)
    replace_text(folder / "result.json", json.dumps(result, indent=2) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.eval", EvaluateConfig, {}, _run, argv)


def _run(config: EvaluateConfig) -> int:
    result, groups = asyncio.run(measure(config))
    # Before writing files, so that a full disk loses no result.
    if config.json:
        answer(result)
    else:
        write_stdout(table_text(result))
    write_evaluation(config, result, groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())

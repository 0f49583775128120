"""``python -m rl.train env=code-sandbox``: reinforcement learning, from top to bottom.

A step plays episodes with the current weights, shapes their rewards, learns from them, and tells
the policy. Every so often validation tasks choose the best weights. Test tasks, on which no choice
depends, are played before and after.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.command import INTERRUPTED, run_command
from rl.config import PRESETS, TrainConfig, run_path
from rl.errors import RunFailure
from rl.run.activity import LEARNER, OPEN, Activities
from rl.run.closing import leave, run_in_time
from rl.run.files import discard_if_refused, put
from rl.run.folder import RunFolder
from rl.run.host import COMMAND, Host
from rl.run.plain import to_plain
from rl.settings.files import as_values
from rl.settings.splits import check_splits

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.run.display import Display
    from rl.run.gradient import Silence
    from rl.run.interrupt import Interrupt
    from rl.run.metrics import PassRate
    from rl.tracking.callback import Callback
    from rl.tracking.tracker import Tracker
    from rl.trainer import Trainer

Part = Callable[[str], AbstractContextManager[object]]
"""Counts the seconds of a context, and says what goes on there."""


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    step: int = 0
    finished: bool = False
    """False when it was stopped before its last step."""
    before: PassRate | None = None
    """Success on test tasks before the first step."""
    after: PassRate | None = None
    """The same with the best weights by validation."""
    silence: Silence | None = None
    """The steps whose rewards gave no gradient, and why."""


async def train(
    config: TrainConfig, host: Host = COMMAND, callbacks: Sequence[Callback] = ()
) -> Outcome:
    """Run what ``config`` says in the process of ``host``, and call further ``callbacks``.

    Raises:
        UsageError: the folder's run goes on, or resume is "no"; or a setting is wrong.
        RunFailure: a callback raised; the steps that are done are saved.
        NonFiniteLoss: the loss is not finite; the good weights are saved, the episodes as well.
        BrokenWeights: an update spoilt the weights; they are not saved.
        RolloutFailure: too many episodes failed for reasons that are not the policy's.
    """
    from rl.run.display import Display

    title = f"{config.env.env_id}, {config.algo.name}, model {config.model}, seed {config.seed}"
    folder = RunFolder(run_path(config.out, config, config.algo.name), config)
    with folder.held(), Display(title, config.steps) as display:
        display.say(f"run folder: {folder.path}")
        check_splits(config)
        tracker = _tracker(config, folder, display, callbacks)
        # These load torch, which `--help`, a mistyped key and the first line do not wait for.
        from rl.run.interrupt import Interrupt
        from rl.run.watchdog import Watchdog
        from rl.stage import open_stage
        from rl.trainer import Trainer

        outcome, activities = Outcome(folder.path), Activities(on_count=display.count)
        async with (
            Watchdog(activities, folder.path, config, display.say, host) as watchdog,
            tracker,
            open_stage(config, display.say, folder.logs, config.staleness > 0, activities) as stage,
            Trainer(config, folder, stage) as trainer,
            Interrupt(display.say, activities, host) as interrupt,
        ):
            outcome.before = await _begin(trainer, interrupt, tracker)
            watchdog.step = trainer.progress.step
            started = time.monotonic() - trainer.progress.seconds
            for step in range(trainer.progress.step + 1, config.steps + 1):
                began = time.perf_counter()
                part = partial(activities.doing, "learner", f"step {step}")
                with part("sampling"):
                    groups = await interrupt.unless_asked(trainer.rollout(step), trainer.save_done)
                if groups is None:
                    break
                metrics = await _learn(trainer, part, step, groups)
                metrics |= _speed(metrics, time.perf_counter() - began)
                trainer.progress.step = watchdog.step = step
                trainer.progress.seconds = time.monotonic() - started
                last = step == config.steps or 0 < config.max_seconds <= trainer.progress.seconds
                if last or step % config.eval.every == 0:
                    metrics |= await _validate_now(trainer, part, interrupt)
                metrics |= activities.take()
                saves = last or step % config.save_every == 0
                await _record_step(trainer, tracker, part, metrics, groups, saves)
                if last:
                    break
            await trainer.stop_rollouts()
            await _end(trainer, interrupt, outcome, title, tracker)
            watchdog.finished = outcome.finished
    return outcome


def _tracker(
    config: TrainConfig, folder: RunFolder, display: Display, callbacks: Sequence[Callback]
) -> Tracker:
    """What gets the run's numbers: metrics.jsonl, the screen, and what ``config`` names."""
    from rl.tracking.json_lines import JsonLines
    from rl.tracking.mark import FOLDER
    from rl.tracking.screen import OnScreen
    from rl.tracking.sink import RunInfo
    from rl.tracking.tracker import Tracker

    run = RunInfo("train", folder.path, as_values(to_plain(config)))
    direct = [JsonLines(folder.metrics_path), OnScreen(display)]
    return Tracker(run, config, direct, display.say, callbacks, folder.path / FOLDER)


async def _begin(trainer: Trainer, interrupt: Interrupt, tracker: Tracker) -> PassRate | None:
    """Go on from the newest checkpoint, or measure where a new run starts."""
    before = None
    resumed = await trainer.restore()
    trainer.stage.on_evaluated = tracker.evaluated
    with trainer.stage.activities.doing(LEARNER, "the sinks", OPEN):
        await asyncio.to_thread(tracker.open, trainer.progress.step)
    if resumed:
        tracker.say(f"resumed after step {trainer.progress.step}")
    else:
        trainer.folder.write_config(trainer.config, trainer.stage.facts())
        before = await interrupt.unless_asked(_test(trainer, "before training", tracker))
        trainer.progress.validation_due = True
    if trainer.progress.validation_due and (made := await _validate(trainer, interrupt)):
        await _record(tracker, {"step": trainer.progress.step} | made)
    trainer.stage.activities.take()  # What came before the first step is of no step.
    return before


async def _record(tracker: Tracker, record: Mapping[str, Any]) -> None:
    """Log an evaluation between steps, and call the callbacks."""
    tracker.log(record)
    if tracker.callbacks:
        await asyncio.to_thread(tracker.call, record)


async def _record_step(
    trainer: Trainer,
    tracker: Tracker,
    part: Part,
    metrics: Mapping[str, Any],
    groups: Sequence[TrajectoryGroup],
    saves: bool,
) -> None:
    """Log a step, save it if asked, and call the callbacks; a step that one refuses is saved."""
    tracker.log(metrics)  # Before the checkpoint: what one covers is on the disk.
    if saves:
        with part("save"):
            await trainer.save()
    if not tracker.callbacks:
        return
    with part("callbacks"):
        try:
            await asyncio.to_thread(tracker.call, metrics, groups)
        except RunFailure:
            await trainer.save_done()
            raise


def _speed(metrics: dict[str, Any], seconds: float) -> dict[str, float]:
    """How long a step took to play and to learn, and how much was sampled in that time."""
    return {
        "step_time": seconds,
        "tokens_per_second": metrics["num_sampled_tokens"] / seconds,
    }


async def _learn(
    trainer: Trainer, part: Part, step: int, groups: list[TrajectoryGroup]
) -> dict[str, Any]:
    """Shape the rewards of a step's episodes, record the episodes and learn from them.

    Returns:
        The metrics of all three.
    """
    from rl.learner.seam import NonFiniteLoss
    from rl.run.gradient import PREFIX, cause_of
    from rl.run.metrics import rollout_metrics

    with part("reward"):
        agreement = await trainer.shape(step, groups)
    metrics: dict[str, Any] = {"step": step} | rollout_metrics(groups, trainer.stage.success_score)
    metrics |= await trainer.stage.meter.take()
    with part("write"):
        written = trainer.folder.write_trajectories(step, groups, trainer.config.keep_episodes)
    try:
        with part("learn"):
            metrics |= await trainer.learn(groups)
            cause = cause_of(metrics, [trainer.success(t) for g in groups for t in g.finished])
            metrics |= {} if cause is None else {PREFIX + cause: 1.0}
    except NonFiniteLoss as error:
        await trainer.save()
        error.add_note(f"the episodes are in {written}")
        raise
    with part("sync"):
        return metrics | await trainer.publish() | agreement


async def _validate_now(trainer: Trainer, part: Part, interrupt: Interrupt) -> dict[str, float]:
    """As :func:`_validate`, of a step; where somebody asked to stop, the next run makes it."""
    trainer.progress.validation_due = True
    with part("validate"):
        return await _validate(trainer, interrupt)


async def _validate(trainer: Trainer, interrupt: Interrupt) -> dict[str, float]:
    """Success on validation tasks as a metric; nothing where there are none, or after Ctrl-C."""
    if trainer.config.eval.tasks == 0:
        trainer.progress.validation_due = False
        return {}
    made = await interrupt.unless_asked(trainer.validate())
    if made is not None:
        # What was made counts, whoever asks to stop while its weights are being kept.
        await trainer.judged(made["eval/success"])
    return made or {}


async def _end(
    trainer: Trainer,
    interrupt: Interrupt,
    outcome: Outcome,
    title: str,
    tracker: Tracker,
) -> None:
    """Test the best weights of a finished run, or save those of a stopped one; sum the run up."""
    from rl.run.curve import draw_curve
    from rl.run.gradient import causes_in, silence_of
    from rl.run.ledger_chart import draw_ledger

    outcome.step = step = trainer.progress.step
    if not interrupt.asked:
        outcome.after = await interrupt.unless_asked(_test_best(trainer, tracker))
    else:
        await trainer.save_done()
    outcome.finished = not interrupt.asked
    if interrupt.asked:
        done = f"after step {step}" if step else "before the first step was done"
        tracker.say(f"stopped {done}; go on with python -m rl.train resume={trainer.folder.path}")
    records = trainer.folder.read_metrics()
    outcome.silence = silence_of(causes_in(records))
    if outcome.silence.count:
        tracker.say(str(outcome.silence))
    result = _result(trainer, outcome, records)
    trainer.folder.write_result(result)
    images = {name: trainer.folder.path / f"{name}.png" for name in ("curve", "ledger")}
    draw_curve(records, images["curve"], title)
    draw_ledger(records, images["ledger"], title)
    tracker.finish(result, images)


def _result(
    trainer: Trainer, outcome: Outcome, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What a run came to, as result.json has it."""
    assert outcome.silence is not None
    tests = [record for record in records if "test/success" in record]
    config = trainer.config
    return {
        "env": config.env.env_id,
        "algo": config.algo.name,
        "model": config.model,
        "seed": config.seed,
        "finished": outcome.finished,
        "steps": outcome.step,
        "seconds": trainer.progress.seconds,
        "score": trainer.stage.success_score or "return",
        "before": _tested([record for record in tests if record["step"] == 0]),
        "after": None if outcome.after is None else _tested(tests),
        "best_step": trainer.best.step,
        **outcome.silence.to_json(),
    }


def _tested(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last of some tests, without the prefix of its keys."""
    if not tests:
        return None
    return {k.removeprefix("test/"): v for k, v in tests[-1].items() if k.startswith("test/")}


async def _test_best(trainer: Trainer, tracker: Tracker) -> PassRate | None:
    """Measure success of the best weights on test tasks, unless that was done at this step.

    Without validation tasks the last weights count as the best.
    """
    tested = trainer.folder.last_test(trainer.progress.step)
    if tested is not None:
        tracker.say(
            f"finished and tested before: {trainer.stage.success_score or 'return'} {tested}"
        )
        return tested
    if trainer.config.eval.tasks == 0:
        await trainer.judged(None)
        return await _test(trainer, f"last weights (step {trainer.best.step})", tracker)
    await trainer.load_best()
    best = f"best weights by validation (step {trainer.best.step})"
    return await _test(trainer, best, tracker)


async def _test(trainer: Trainer, weights: str, tracker: Tracker) -> PassRate | None:
    """Measure success on test tasks, log it and say it."""
    if trainer.config.eval.test_tasks == 0:
        return None
    rate = await trainer.test()
    tracker.say(f"test tasks, {weights}: {trainer.stage.success_score or 'return'} {rate}")
    record = {"step": trainer.progress.step, "test/success": rate.rate, "test/tasks": rate.count}
    interval = {"test/success_low": rate.low, "test/success_high": rate.high}
    await _record(tracker, record | interval)
    return rate


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.train", TrainConfig, PRESETS, _run, argv)


def _run(config: TrainConfig) -> int:
    with discard_if_refused(run_path(config.out, config, config.algo.name)):
        outcome = run_in_time(train(config), config.close_s)
    put(sys.stdout, f"run: {outcome.folder}\n")
    return 0 if outcome.finished else INTERRUPTED


if __name__ == "__main__":
    leave(main())

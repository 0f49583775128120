"""``python -m rl.train env=code-sandbox``: the training loop of reinforcement learning.

A step plays episodes with the current weights, shapes their rewards, learns from them, and loads
the new weights into the policy. Validation tasks select the best weights every ``eval.every``
steps. Test tasks are played before and after training; no choice depends on them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import INTERRUPTED, RunFailure, UsageError
from rl.files import discard_if_refused, write_stdout
from rl.learner.ranks.restarts import with_restarts
from rl.run.folder import RunFolder, When
from rl.run.process.activity import CLOSE, LEARNER, OPEN, Activities
from rl.run.process.closing import exit_process, run_in_time
from rl.run.process.command import run_command
from rl.run.process.host import COMMAND, Host
from rl.run.process.state import restore_finished
from rl.run.splits import check_curriculum, check_splits, check_warm_start
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain, without_secrets
from rl.settings.run import resume_words, run_path
from rl.settings.train import PRESETS, TrainConfig
from rl.sft import check_texts

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.run.metrics.intervals import PassRate
    from rl.run.metrics.no_gradient import NoGradient
    from rl.run.process.interrupt import Interrupt
    from rl.run.screen import Display
    from rl.run.trainer import Trainer
    from rl.tracking.callback import Callback
    from rl.tracking.tracker import Tracker

Phase = Callable[[str], AbstractContextManager[object]]
"""Function from the name of a step's phase to a context whose seconds count for this phase."""


@dataclass
class Outcome:
    """The end of a run."""

    folder: Path
    step: int = 0
    finished: bool = False
    """Whether the run did its last step."""
    before: PassRate | None = None
    """Success on test tasks before the first step."""
    after: PassRate | None = None
    """Success on test tasks with the weights that did best on validation tasks."""
    no_gradient: NoGradient | None = None
    """The steps whose rewards gave no gradient."""

    def __str__(self) -> str:
        """The number of steps, and success on test tasks."""
        tested = "" if self.after is None else f", success on test tasks {self.after}"
        return f"{self.step} steps{tested}; a larger steps or max_seconds continues"


async def train(
    config: TrainConfig, host: Host = COMMAND, callbacks: Sequence[Callback] = ()
) -> Outcome:
    """Train as ``config`` specifies, in the process of ``host``, with additional callbacks.

    Raises:
        UsageError: a setting is wrong, or the folder's run is another one, or still runs.
        RunFailure: a callback raised an error; the finished steps are saved.
        NonFiniteLoss, BrokenWeights: the last update failed; earlier weights are saved.
        RolloutFailure: too many episodes failed for reasons other than the policy.
    """
    return await with_restarts(partial(_train, host=host, callbacks=callbacks), config)


async def _train(config: TrainConfig, host: Host, callbacks: Sequence[Callback]) -> Outcome:
    """Train until the end, or until the learner is lost."""
    from rl.run.screen import Display

    title = f"{config.env.env_id}, {config.algo.name}, model {config.model}, seed {config.seed}"
    folder = RunFolder(run_path(config.out, config, config.algo.name), config)
    with folder.held(), Display(title, config.steps) as display:
        display.report(f"run folder: {folder.path}")
        finished = folder.finished()
        if finished is not None and (outcome := _nothing_to_do(config, folder, finished)):
            display.report(f"already finished: {outcome}")
            return outcome
        _check(config, display.report)
        tracker = _tracker(config, folder, display, callbacks)
        # These load torch; `--help`, a mistyped key and the first line do not wait for it.
        from rl.run.process.interrupt import Interrupt
        from rl.run.process.watchdog import Watchdog
        from rl.run.trainer import Trainer
        from rl.runtime.runtime import open_runtime

        outcome, ahead = Outcome(folder.path), config.staleness > 0
        activities = Activities(on_count=display.count)
        async with (
            Watchdog(
                *(activities, folder.path, config, display.report, host),
                finished_step=None if finished is None else finished["steps"],
            ) as watchdog,
            tracker,
            open_runtime(config, display.report, folder.logs, ahead, activities) as runtime,
            Trainer(config, folder, runtime) as trainer,
            Interrupt(display.report, activities, host) as interrupt,
            host.short_collections(),
        ):
            outcome.before = await _begin(trainer, interrupt, tracker)
            watchdog.step = trainer.progress.step
            started = time.monotonic() - trainer.progress.seconds
            for step in range(trainer.progress.step + 1, config.steps + 1):
                began = time.perf_counter()
                phase = partial(activities.doing, "learner", f"step {step}")
                with phase("sampling"):
                    groups = await interrupt.unless_asked(trainer.rollout(step), trainer.save_done)
                if groups is None:
                    break
                metrics = await _learn(trainer, phase, step, groups)
                metrics |= _speed(metrics, time.perf_counter() - began)
                trainer.progress.step = watchdog.step = step
                trainer.progress.seconds = time.monotonic() - started
                last = step == config.steps or 0 < config.max_seconds <= trainer.progress.seconds
                if last or step % config.eval.every == 0:
                    metrics |= await _validate_now(trainer, phase, interrupt)
                saves = last or step % config.save_every == 0
                await _record_step(trainer, tracker, phase, metrics, groups, saves)
                if last:
                    break
            await trainer.stop_rollouts()
            await trainer.checkpoints.settle()
            await _end(trainer, interrupt, outcome, title, tracker)
            watchdog.finished = outcome.finished
    return outcome


def _nothing_to_do(
    config: TrainConfig, folder: RunFolder, result: Mapping[str, Any]
) -> Outcome | None:
    """The outcome of a finished run that has neither a step nor a test left, or None."""
    from rl.run.metrics.no_gradient import causes_in, no_gradient_of

    step = int(result["steps"])
    more = step < config.steps and not 0 < config.max_seconds <= result["seconds"]
    tested = folder.last_test(step)
    if more or (config.eval.test_tasks and tested is None):
        return None
    restore_finished(folder.path, step)
    if folder.backup is not None:
        folder.backup.copy(max(folder.checkpoints.glob("step-*"), default=None))
    causes = no_gradient_of(causes_in(folder.read_metrics()))
    return Outcome(folder.path, step, finished=True, after=tested, no_gradient=causes)


def _tracker(
    config: TrainConfig, folder: RunFolder, display: Display, callbacks: Sequence[Callback]
) -> Tracker:
    """The tracker, with metrics.jsonl, the screen, and the sinks and callbacks of ``config``."""
    from rl.run.screen import OnScreen
    from rl.tracking.json_lines import JsonLines
    from rl.tracking.mark import FOLDER
    from rl.tracking.sink import RunInfo
    from rl.tracking.tracker import Tracker

    run = RunInfo("train", folder.path, without_secrets(as_values(to_plain(config))))
    direct = [JsonLines(folder.metrics_path), OnScreen(display)]
    return Tracker(run, config, direct, display.report, callbacks, folder.path / FOLDER)


async def _begin(trainer: Trainer, interrupt: Interrupt, tracker: Tracker) -> PassRate | None:
    """Continue from the newest checkpoint, or measure success before training."""
    before = None
    resumed = await trainer.restore()
    trainer.runtime.on_evaluated = tracker.evaluated
    with trainer.runtime.activities.doing(LEARNER, "the sinks", OPEN):
        await asyncio.to_thread(tracker.open, trainer.progress.step)
    if resumed:
        tracker.report(f"resumed after step {trainer.progress.step}")
        if trainer.folder.changes:
            tracker.report(f"changed settings: {', '.join(trainer.folder.changes)}")
        for file in trainer.folder.changed_files():
            tracker.report(f"{file} changed since the run began: the next steps play its new tasks")
        trainer.folder.record_changes(trainer.progress.step)
    else:
        if trainer.folder.was_begun:
            tracker.report("the run saved no checkpoint: it starts over")
        trainer.folder.write_config(trainer.config, trainer.runtime.facts())
        before = await interrupt.unless_asked(_test(trainer, "before", "before training", tracker))
        trainer.progress.validation_due = True
    if trainer.progress.validation_due and (made := await _validate(trainer, interrupt)):
        await _record(tracker, {"step": trainer.progress.step} | made)
    trainer.runtime.activities.take()  # The seconds before the first step count to no step.
    return before


async def _record(tracker: Tracker, record: Mapping[str, Any]) -> None:
    """Log an evaluation between steps, and call the callbacks."""
    tracker.log(record)
    if tracker.callbacks:
        await asyncio.to_thread(tracker.call, record)


async def _record_step(
    trainer: Trainer,
    tracker: Tracker,
    phase: Phase,
    metrics: Mapping[str, Any],
    groups: Sequence[TrajectoryGroup],
    saves: bool,
) -> None:
    """Log a step and call the callbacks. Save the step if ``saves`` or if a callback fails."""
    metrics = {**metrics, **trainer.runtime.activities.take()}
    tracker.log(metrics)  # Before the checkpoint, so that its metrics are on the disk.
    tracker.log_episodes(metrics["step"], groups)
    if saves:
        with phase("save"):
            await trainer.save()
    if not tracker.callbacks:
        return
    with phase("callbacks"):
        try:
            await asyncio.to_thread(tracker.call, metrics, groups)
        except RunFailure:
            await trainer.save_done()
            raise


def _speed(metrics: dict[str, Any], seconds: float) -> dict[str, float]:
    """The seconds of a step, and the sampled tokens per second."""
    return {"step_time": seconds, "tokens_per_second": metrics["num_sampled_tokens"] / seconds}


async def _learn(
    trainer: Trainer, phase: Phase, step: int, groups: list[TrajectoryGroup]
) -> dict[str, Any]:
    """Shape the rewards of a step's episodes, write the episodes, and learn from them.

    Returns:
        The metrics of the step.
    """
    from rl.learner.seam import NonFiniteLoss
    from rl.run.metrics.episodes import rollout_metrics
    from rl.run.metrics.no_gradient import PREFIX, cause_of

    with phase("reward"):
        agreement = await trainer.shape(step, groups)
    # In threads, also the files: episodes that are played ahead continue.
    metrics: dict[str, Any] = {"step": step}
    known = trainer.runtime.success_score, trainer.reward_range
    metrics |= await asyncio.to_thread(rollout_metrics, groups, *known)
    metrics |= await trainer.runtime.service_metrics.take()
    with phase("write"):
        write = partial(trainer.folder.write_trajectories, step, groups)
        written = await asyncio.to_thread(write, trainer.config.keep_episodes)
    try:
        with phase("learn"):
            metrics |= await trainer.learn(groups)
            cause = cause_of(metrics, [outcome for group in groups for outcome in group.outcomes])
            metrics |= {} if cause is None else {PREFIX + cause: 1.0}
    except NonFiniteLoss as error:
        await trainer.save()
        error.add_note(f"the episodes are in {written}")
        raise
    with phase("sync"):
        metrics |= await trainer.publish()
    with phase("write"):
        await trainer.record_tokens(step, groups)
    return metrics | agreement


async def _validate_now(trainer: Trainer, phase: Phase, interrupt: Interrupt) -> dict[str, float]:
    """Validate after a step. After a request to stop, the resumed run validates instead."""
    trainer.progress.validation_due = True
    with phase("validate"):
        return await _validate(trainer, interrupt)


async def _validate(trainer: Trainer, interrupt: Interrupt) -> dict[str, float]:
    """Measure and record success on validation tasks. Returns {} without tasks or after Ctrl-C."""
    if trainer.config.eval.tasks == 0:
        trainer.progress.validation_due = False
        return {}
    made = await interrupt.unless_asked(trainer.validate())
    if made is not None:
        # The save is not cancelled: a finished validation counts.
        await trainer.record_validation(made["eval/success"])
    return made or {}


async def _end(
    trainer: Trainer, interrupt: Interrupt, outcome: Outcome, title: str, tracker: Tracker
) -> None:
    """Finish a run: test the best weights, or save a stopped run, and write the result."""
    from rl.reports.card import write_card
    from rl.run.curve import draw_curve
    from rl.run.ledger_chart import draw_ledger
    from rl.run.metrics.no_gradient import causes_in, no_gradient_of

    outcome.step = step = trainer.progress.step
    if not interrupt.asked:
        outcome.after = await interrupt.unless_asked(_test_best(trainer, tracker))
    else:
        await trainer.save_done()
    outcome.finished = not interrupt.asked
    if interrupt.asked:
        done = f"after step {step}" if step else "before the first step was done"
        words = resume_words(trainer.config.env.env_id, trainer.folder.path)
        tracker.report(f"stopped {done}; continue with {words}")
    records = trainer.folder.read_metrics()
    outcome.no_gradient = no_gradient_of(causes_in(records))
    if outcome.no_gradient.count:
        tracker.report(str(outcome.no_gradient))
    # A finished run that was asked to stop before a further step stays finished.
    former = trainer.folder.finished() if interrupt.asked else None
    result = former or _result(trainer, outcome, records)
    trainer.folder.write_result(result)
    images = {name: trainer.folder.path / f"{name}.png" for name in ("curve", "ledger")}
    draw_curve(records, images["curve"], title)
    draw_ledger(records, images["ledger"], title)
    # Again: the result, the curve and the best validation's metrics are written now.
    write_card(trainer.folder.checkpoints / "best", trainer.folder.path)
    tracker.finish(result, images)
    with trainer.runtime.activities.doing(LEARNER, "the backup", CLOSE):
        await trainer.checkpoints.back_up()


def _result(
    trainer: Trainer, outcome: Outcome, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of result.json."""
    assert outcome.no_gradient is not None
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
        "score": trainer.runtime.success_score or "return",
        "before": _tested([record for record in tests if record["step"] == 0]),
        "after": None if outcome.after is None else _tested(tests),
        "best_step": trainer.best.step,
        **outcome.no_gradient.to_json(),
    }


def _tested(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last test result, without the prefix of its keys, or None if there is none."""
    if not tests:
        return None
    return {k.removeprefix("test/"): v for k, v in tests[-1].items() if k.startswith("test/")}


async def _test_best(trainer: Trainer, tracker: Tracker) -> PassRate | None:
    """Measure success of the best weights on test tasks, unless it was measured at this step.

    Without validation tasks, the last weights count as the best.
    """
    tested = trainer.folder.last_test(trainer.progress.step)
    if tested is not None:
        tracker.report(
            f"already finished and tested: {trainer.runtime.success_score or 'return'} {tested}"
        )
        return tested
    if trainer.config.eval.tasks == 0:
        await trainer.record_validation(None)
        return await _test(trainer, "after", f"last weights (step {trainer.best.step})", tracker)
    await trainer.load_best()
    best = f"best weights by validation (step {trainer.best.step})"
    return await _test(trainer, "after", best, tracker)


async def _test(trainer: Trainer, when: When, weights: str, tracker: Tracker) -> PassRate | None:
    """Measure success on test tasks, log it and report it."""
    if trainer.config.eval.test_tasks == 0:
        return None
    rate = await trainer.test(when)
    tracker.report(f"test tasks, {weights}: {trainer.runtime.success_score or 'return'} {rate}")
    record = {"step": trainer.progress.step, "test/success": rate.rate, "test/tasks": rate.count}
    interval = {"test/success_low": rate.low, "test/success_high": rate.high}
    await _record(tracker, record | interval)
    return rate


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.train", TrainConfig, PRESETS, _run, argv, _explain)


def _check(config: TrainConfig, report: Callable[[str], None]) -> None:
    """Check the data's splits and the memory that the run needs.

    Raises:
        UsageError: a split is empty, model=tiny has no demonstrator, the environment lacks what
            the curriculum or the algorithm needs, a file of texts is wrong, or the run cannot fit
            into the GPU's memory.
    """
    check_splits(config)
    check_warm_start(config)
    check_curriculum(config)
    if config.algo.row.ptx_coef:
        check_texts(config.texts.data, "texts.data")
    from rl.planning.check import check_memory  # loads torch

    check_memory(config, report)
    if notice := config.lr_notice:
        report(notice)


def _explain(config: TrainConfig) -> str:
    """The text of the memory plan."""
    from rl.planning.check import explain

    try:
        return explain(config)
    except UsageError as error:
        return f"no memory plan: {error}"


def _run(config: TrainConfig) -> int:
    with discard_if_refused(run_path(config.out, config, config.algo.name)):
        outcome = run_in_time(train(config), config.close_s)
    write_stdout(f"run: {outcome.folder}\n")
    return 0 if outcome.finished else INTERRUPTED


if __name__ == "__main__":
    exit_process(main())

"""``python -m rl.train env=code-sandbox``: reinforcement learning, from top to bottom.

A step plays episodes with the current weights, learns from them, and tells the policy. Every so
often validation tasks choose the best weights. Test tasks, on which no choice depends, are played
before and after.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.policy import PolicyFailure
from envs.episode import EnvFailure
from rl.cli import parse
from rl.config import PRESETS, TrainConfig, as_lines, describe, run_name
from rl.errors import RunFailure, UsageError
from rl.run.folder import RunFolder
from rl.run.identity import PackageCollision, check_packages
from tools.sandbox.errors import SandboxUnavailable

if TYPE_CHECKING:
    from rl.run.metrics import PassRate
    from rl.trainer import Trainer

EXPECTED_ERRORS = (
    UsageError,
    RunFailure,
    PackageCollision,
    SandboxUnavailable,
    EnvFailure,
    PolicyFailure,
)
"""What ends a run with one line; everything else is a bug and shows its traceback."""


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    step: int
    finished: bool
    """False when it was stopped before its last step."""
    before: PassRate | None = None
    """Success on test tasks before the first step."""
    after: PassRate | None = None
    """The same with the best weights by validation."""


async def train(config: TrainConfig) -> Outcome:
    """Run what ``config`` says; everything that happens is in the run's folder.

    Raises:
        UsageError: the folder holds a run and resume is "no", or a setting is wrong.
        NonFiniteLoss: the loss is not finite; the last good checkpoint is kept, the batch dumped.
        RolloutFailure: too many episodes failed for reasons that are not the policy's.
    """
    # These load torch, which `--help` and a mistyped key should not have to wait for.
    from rl.learner.learner import NonFiniteLoss
    from rl.run.curve import draw_curve
    from rl.run.display import Display
    from rl.run.interrupt import Interrupt
    from rl.run.ledger import Ledger
    from rl.run.metrics import rollout_metrics
    from rl.trainer import open_trainer

    folder = RunFolder(Path(run_name(config)), resume=config.resume == "auto")
    folder.check_same_run(config)
    ledger = Ledger()
    with Display(run_name(config), config.steps) as display, Interrupt() as interrupt:
        display.say(f"run folder: {folder.path}")
        async with open_trainer(config, folder, display.say) as trainer:
            outcome = Outcome(folder.path, 0, finished=False)
            started = time.monotonic()
            if trainer.restore():
                display.say(f"resumed after step {trainer.progress.step}")
            else:
                folder.write_config(config, trainer.facts())
                outcome.before = await _test(trainer, folder, 0, display.say)
                await _validate(trainer, folder, {"step": 0})
            earlier = trainer.progress.seconds

            for step in range(trainer.progress.step + 1, config.steps + 1):
                began = time.perf_counter()
                with ledger.part("rollout"):
                    groups = await interrupt.unless_asked(trainer.rollout(step))
                if groups is None:
                    break
                metrics: dict[str, Any] = {"step": step} | rollout_metrics(groups)
                with ledger.part("learn"):
                    try:
                        metrics |= await trainer.learn(groups)
                    except NonFiniteLoss as error:
                        error.add_note(f"its episodes: {trainer.dump(groups, step)}")
                        raise
                trainer.progress.step = step
                trainer.progress.seconds = earlier + time.monotonic() - started
                with ledger.part("write"):
                    folder.write_trajectories(step, groups)
                metrics["step_time"] = time.perf_counter() - began
                metrics["tokens_per_second"] = metrics["num_sampled_tokens"] / metrics["step_time"]
                last = step == config.steps or interrupt.asked or _time_is_up(config, trainer)
                if last or step % config.eval.every == 0:
                    with ledger.part("validate"):
                        await _validate(trainer, folder, metrics)
                if last or step % config.save_every == 0:
                    with ledger.part("save"):
                        trainer.save(step)
                metrics |= ledger.take()
                folder.log(metrics)
                display.step(step, metrics)
                if last:
                    break

            outcome.step = trainer.progress.step
            outcome.finished = not interrupt.asked
            if interrupt.asked:
                trainer.save(outcome.step)
                display.say(f"stopped after step {outcome.step}; go on with resume=auto")
            else:
                trainer.load_best()
                outcome.after = await _test(trainer, folder, outcome.step, display.say)
            draw_curve(folder.read_metrics(), folder.path / "curve.png", describe(config))
    return outcome


async def _validate(trainer: Trainer, folder: RunFolder, metrics: dict[str, Any]) -> None:
    """Measure success on validation tasks into ``metrics`` and keep the weights if they are best.

    At step 0 the measurement is logged at once; later it goes with the step's own record.
    """
    rate = await trainer.evaluate("validation", trainer.config.eval.tasks)
    metrics["eval/success"] = rate.rate
    trainer.save_best(rate.rate)
    if metrics["step"] == 0:
        folder.log(metrics)


async def _test(
    trainer: Trainer, folder: RunFolder, step: int, say: Callable[[str], None]
) -> PassRate | None:
    """Measure success on test tasks, log it and say it."""
    if trainer.config.eval.test_tasks == 0:
        return None
    rate = await trainer.evaluate("test", trainer.config.eval.test_tasks)
    when = f"best weights (step {trainer.progress.best_step})" if step else "before training"
    say(f"test tasks, {when}: {trainer.success_score or 'return'} {rate}")
    folder.log(
        {
            "step": step,
            "test/success": rate.rate,
            "test/success_low": rate.low,
            "test/success_high": rate.high,
            "test/tasks": rate.count,
        }
    )
    return rate


def _time_is_up(config: TrainConfig, trainer: Trainer) -> bool:
    return 0 < config.max_seconds <= trainer.progress.seconds


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0, 1 for a failure, 130 when interrupted."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        check_packages()
        config = parse(
            TrainConfig,
            sys.argv[1:] if argv is None else argv,
            command="python -m rl.train",
            presets=PRESETS,
        )
        if config.dry_run:
            sys.stdout.write(as_lines(config))
            return 0
        outcome = asyncio.run(train(config))
    except EXPECTED_ERRORS as error:
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        sys.stderr.write(f"error: {error}{notes}\n")
        return 1
    sys.stdout.write(f"run: {outcome.folder}\n")
    return 0 if outcome.finished else 130


if __name__ == "__main__":
    sys.exit(main())

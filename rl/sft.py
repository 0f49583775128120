"""``python -m rl.sft env=code-sandbox``: supervised fine-tuning on conversations.

The conversations are an environment's demonstrations, or a file of chat messages. Only the
assistant's tokens are trained.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl.data.json_lines import read_lines
from rl.data.roles import FORMAT, check_roles
from rl.errors import UsageError
from rl.files import claimed_folder
from rl.run.process.activity import Activities
from rl.run.process.command import answer, run_command
from rl.run.screen import Screen
from rl.run.splits import check_splits, check_warm_start
from rl.run.training_log import TrainingLog
from rl.settings.finetuning import DEMONSTRATIONS, SFTConfig
from rl.settings.run import run_path

if TYPE_CHECKING:
    from agents.segment import Segment
    from rl.runtime.runtime import Runtime
    from rl.tracking.callback import Callback


async def finetune(config: SFTConfig, callbacks: Sequence[Callback] = ()) -> dict[str, object]:
    """Train a model on conversations and save it.

    Args:
        config: the settings.
        callbacks: called in addition to the callbacks of ``config``.

    Returns:
        The first and the last loss, success on test tasks before and after, and the model's path.

    Raises:
        UsageError: the data, the model or the folder cannot be used with these settings.
        NonFiniteLoss: the loss is not finite; nothing is saved.
        LearnerLost: a rank of the learner ended; nothing is saved.
    """
    folder = run_path(config.out, config)
    with claimed_folder(folder, ("checkpoints/last",)), Screen() as screen:
        screen.report(f"{_title(config)}: {folder}")
        return await _finetune(config, folder, screen, callbacks)


async def _finetune(
    config: SFTConfig, folder: Path, screen: Screen, callbacks: Sequence[Callback]
) -> dict[str, object]:
    check_splits(config)
    check_warm_start(config)
    check_texts(config.data, "data")
    # Imports torch: a wrong setting is reported before that.
    from rl.learner.seam import Experience
    from rl.runtime.imitation import make_steps
    from rl.runtime.runtime import open_runtime
    from rl.runtime.text_segments import text_segments

    activities, saved = Activities(on_count=screen.count), folder / "checkpoints" / "last"
    log = TrainingLog("sft", folder, config, screen.report, callbacks)
    opened = open_runtime(config, screen.report, folder / "logs", activities=activities)
    async with log, opened as runtime:
        learner = runtime.learner
        segments = await text_segments(runtime, config.data, config.demonstrations)
        before = await _test(config, runtime, screen, log)
        started = time.monotonic()

        def on_step(step: int, loss: float) -> bool:
            activities.counted("supervised steps", step, config.steps)
            log.step({"step": step, "loss": loss})
            if step % 50 == 0:
                screen.report(f"step {step}/{config.steps}  loss {loss:.4f}")
            return not 0 < config.max_seconds <= time.monotonic() - started

        async def update(part: Sequence[Segment]) -> dict[str, float]:
            return await learner.update(Experience((), part), learner.version + 1)

        async with runtime.learning():
            losses = await make_steps(
                update,
                segments,
                window=learner.facts.context_window,
                steps=config.steps,
                batch_size=config.batch_size,
                seed=config.seed,
                on_step=on_step,
            )
        seconds = time.monotonic() - started
        log.draw(_title(config))
        await runtime.publish()
        after = await _test(config, runtime, screen, log, len(losses))
        await learner.save(saved)
        result: dict[str, object] = {
            "model": str(saved),
            "steps": len(losses),
            "seconds": seconds,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "before": before,
            "after": after,
        }
        log.finish(result)
    return result


def _title(config: SFTConfig) -> str:
    learned = f"on {config.data}" if config.data != DEMONSTRATIONS else f"in {config.env.env_id}"
    return f"supervised learning of {config.model} {learned}"


def check_texts(data: str, key: str) -> None:
    """Check a file of conversations, unless ``data`` is "demonstrations".

    A tokenizer is not needed yet: it reads the conversations later.

    Raises:
        UsageError: the file does not exist, or a line has no messages with valid roles.
    """
    if data == DEMONSTRATIONS:
        return
    other = f'"{DEMONSTRATIONS}"'
    try:
        read_lines(
            *(data, lambda row: check_roles(row["messages"]), FORMAT), key=key, instead=other
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


async def _test(
    config: SFTConfig, runtime: Runtime, screen: Screen, log: TrainingLog, step: int = 0
) -> float | None:
    from rl.runtime.runtime import TEST

    if config.test_tasks == 0:
        return None
    runtime.on_evaluated = log.evaluated
    rate, _ = await runtime.evaluate("test", config.test_tasks, TEST, config.sampling_params)
    screen.report(f"test tasks: {runtime.success_score or 'return'} {rate}")
    interval = {"test/success_low": rate.low, "test/success_high": rate.high}
    log.tested({"step": step, "test/success": rate.rate, "test/tasks": rate.count, **interval})
    return rate.rate


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.sft", SFTConfig, {}, _run, argv)


def _run(config: SFTConfig) -> int:
    return answer(asyncio.run(finetune(config)))


if __name__ == "__main__":
    sys.exit(main())

"""``python -m rl.distill model=FOLDER env=code-sandbox``: a model's episodes as training data.

The model plays each training task several times. The episodes that ``keep`` selects become
conversations for ``rl.sft``. The episodes that ``pairs`` selects become preferences for ``rl.dpo``
and ``rl.reward_model``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl.distillation.selection import Keep, Pairs, parse_conditions
from rl.errors import RunFailure, UsageError
from rl.files import claimed_folder, replace_text
from rl.run.process.command import answer, report, run_command
from rl.run.splits import check_splits, check_warm_start
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.run import RunConfig, run_path

if TYPE_CHECKING:
    from rl.distillation.writer import DistillWriter
    from rl.runtime.runtime import Runtime

CONVERSATIONS, PAIRS, RESULT = "conversations.jsonl", "pairs.jsonl", "result.json"
"""Names of the files in the folder."""


@from_python
@dataclass(frozen=True, kw_only=True)
class DistillConfig(RunConfig):
    """Write a model's episodes as training data for other models."""

    tasks: int = 512
    """Number of training tasks. They are the first in the order that the seed determines."""
    episodes: int = 8
    """Number of episodes per task."""
    prompts: int = 32
    """Number of tasks that are played at the same time."""
    keep: Keep = "right"
    """Selection of episodes for each task: right (all right episodes), best (the episode with the
    greatest reward) or shortest (the shortest right episode)."""
    per_task: int = 0
    """With keep=right: maximum number of episodes per task; 0 keeps all."""
    right_from: float = 1.0
    """An episode is right if its outcome is at least this number, above 0 and up to 1."""
    only: str = ""
    """Conditions that episodes must meet, such as "language >= 0.9, repetition >= -0.1"."""
    longest: int = 0
    """Maximum number of sampled tokens per episode; longer episodes are dropped. 0 sets no
    limit."""
    pairs: Pairs = "none"
    """Selection of preferences: none, long2short (the shortest right episode over longer ones),
    right-wrong (each right episode over each wrong one) or ranking (all episodes of a task by their
    rewards)."""
    pairs_per_task: int = 0
    """Maximum number of pairs per task; 0 keeps all."""
    out: str = "runs/{env}-distill-{seed}"
    """The output folder. Existing files are never overwritten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "tasks", "episodes", "prompts")
        at_least(0, self, "per_task", "longest", "pairs_per_task")
        if not 0 < self.right_from <= 1:
            raise ValueError(f"right_from ({self.right_from}) must be above 0 and at most 1")
        if self.per_task and self.keep != "right":
            raise ValueError(f"per_task ({self.per_task}) needs keep=right: drop per_task")
        if self.pairs != "none" and self.episodes < 2:
            raise ValueError(
                f"episodes ({self.episodes}) must be two or more with pairs={self.pairs}, which "
                f"compares the episodes of a task"
            )
        if self.pairs_per_task and self.pairs == "ranking":
            raise ValueError(
                f"pairs_per_task ({self.pairs_per_task}) must be 0 with pairs=ranking, which "
                f"ranks all episodes of a task: limit them with episodes=..."
            )
        parse_conditions(self.only)


async def distill(config: DistillConfig) -> dict[str, object]:
    """Play the episodes and write the files.

    Returns:
        Paths of the files; numbers of tasks, episodes, kept episodes and pairs; mean lengths in
        sampled tokens.

    Raises:
        UsageError: the folder already holds such files, or a setting contradicts the model or the
            environment.
        RunFailure: no episode was kept, or a file cannot be written.
    """
    folder = run_path(config.out, config)
    with claimed_folder(folder, (CONVERSATIONS, PAIRS, RESULT)):
        check_splits(config)
        check_warm_start(config)
        # Imports torch: a wrong setting is reported before that.
        from rl.runtime.runtime import open_runtime

        async with open_runtime(config, report, folder / "logs") as runtime:
            writer, played = await _play(config, runtime)
    if not writer.conversations and not writer.pairs:
        raise RunFailure(f"no episode was kept: {_reason_for_none(writer)}")
    files = {"conversations": str(folder / CONVERSATIONS)}
    replace_text(folder / CONVERSATIONS, _lines(writer.conversations))
    if config.pairs != "none":
        files["pairs"] = str(folder / PAIRS)
        replace_text(folder / PAIRS, _lines(writer.pairs))
    result = {"env": config.env.env_id, "model": config.model, **files, **played}
    result |= writer.summary()
    replace_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


async def _play(config: DistillConfig, runtime: Runtime) -> tuple[DistillWriter, dict[str, int]]:
    """Play all tasks, ``prompts`` at a time, and select episodes to write."""
    from rl.distillation.writer import DistillWriter, Rules
    from rl.rollout.task_order import TaskOrder
    from rl.runtime.runtime import DISTILL

    collector = runtime.collector("train", config.sampling_params)
    env = collector.make_env()
    rules = Rules(
        keep=config.keep,
        per_task=config.per_task,
        pairs=config.pairs,
        pairs_per_task=config.pairs_per_task,
        conditions=parse_conditions(config.only),
        longest=config.longest,
        right_from=config.right_from,
    )
    writer = DistillWriter(rules, runtime.renderer)
    tasks = TaskOrder(len(env.tasks), config.seed).take(0, min(config.tasks, len(env.tasks)))
    failures = 0
    for start in range(0, len(tasks), config.prompts):
        chosen = tasks[start : start + config.prompts]
        groups = await collector.collect(chosen, config.episodes, (config.seed, DISTILL, start))
        failures += sum(t.failure is not None for group in groups for t in group.trajectories)
        try:
            for group in groups:
                writer.take(group)
        except ValueError as error:
            raise UsageError(str(error)) from error
        done = start + len(chosen)
        report(f"tasks {done}/{len(tasks)}  conversations {len(writer.conversations)}")
    return writer, {"tasks": len(tasks), "failures": failures}


def _reason_for_none(writer: DistillWriter) -> str:
    """The reason why no episode was kept."""
    count, right = len(writer.samples), sum(sample.right for sample in writer.samples)
    if right:
        return f"{right} right episodes met no condition (only=..., longest=...)"
    if writer.rules.keep == "best":
        return f"none of {count} episodes met the conditions (only=..., longest=...)"
    return (
        f"none of {count} episodes was right; use a better model, more episodes per task, or a "
        f"lower right_from"
    )


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.distill", DistillConfig, {}, _run, argv)


def _run(config: DistillConfig) -> int:
    return answer(asyncio.run(distill(config)))


if __name__ == "__main__":
    sys.exit(main())

"""``python -m rl.replay runs/search``: a run's updates once more, from its episodes.

A run writes down which episodes entered each update, in which order, with which log-probabilities,
versions and rewards. That is all that an update depends on beside the weights it starts from, also
where episodes were played ahead and time said which of them were done. On a CPU the weights come
out the same, bit for bit.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.cli import parse
from rl.command import answer, run_command, say
from rl.config import PRESETS, TrainConfig
from rl.errors import UsageError
from rl.settings.files import as_words
from rl.settings.policy import LocalPolicyConfig, PolicyChoice
from rl.settings.python import from_python

if TYPE_CHECKING:
    from torch import Tensor

    from rl.rollout.trajectory import TrajectoryGroup
    from rl.trainer import Trainer

DIFFERENT = 3
"""Exit code where the weights came out otherwise."""


@from_python
@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Repeat a run's updates from its recorded episodes, and compare the weights."""

    run: str
    """The run's folder; the word alone will do, without run=."""
    until: int = 0
    """The last step to repeat; 0: that of the newest checkpoint."""
    out: str = ""
    """Where to save the model; empty: nowhere."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""


async def replay(config: ReplayConfig) -> dict[str, Any]:
    """Repeat the updates; what came out, and how it differs from the run's own checkpoint.

    Raises:
        UsageError: the folder holds no run, or the episodes of a step are missing.
    """
    # These load torch, which `--help` and a mistyped key should not have to wait for.
    from rl.run.folder import RunFolder
    from rl.stage import open_stage
    from rl.trainer import Trainer

    run = Path(config.run)
    trained = config_of(run)
    folder = RunFolder(run, trained)
    saved = sorted(folder.checkpoints.glob("step-*"))
    until = config.until or max((_step_of(path) for path in saved), default=0)
    if not until:
        raise UsageError(f"run ({run}) has no checkpoint to compare with: say until=STEP")
    # Nothing is sampled: no server is started.
    alone = replace(trained, policy=PolicyChoice("local", LocalPolicyConfig()))
    async with open_stage(alone, say) as stage, Trainer(trained, folder, stage) as trainer:
        for step in range(1, until + 1):
            metrics = await trainer.learn(_groups_of(trainer, run, step))
            trainer.progress.step = step
            say(f"step {step}/{until}  loss {metrics.get('loss', float('nan')):.6g}")
        result: dict[str, Any] = {"run": str(run), "steps": until}
        if config.out:
            await trainer.learner.save(Path(config.out))
        result |= await _compared(trainer, folder.checkpoints / f"step-{until:06d}")
        if config.out:
            result["model"] = config.out
    return result


def config_of(run: Path) -> TrainConfig:
    """The configuration of a run.

    Raises:
        UsageError: the folder holds no run.
    """
    path = run / "config.json"
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"run ({run}) holds no run: {path} cannot be read ({error})") from error
    recorded |= {"resume": "auto", "out": str(run)}
    return parse(TrainConfig, as_words(recorded), command="python -m rl.replay", presets=PRESETS)


def _groups_of(trainer: Trainer, run: Path, step: int) -> list[TrajectoryGroup]:
    """The groups of a step as they were recorded; those left out of the update are marked."""
    from rl.rollout.dynamic_sampling import drop_uninformative
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.run.folder import read_trajectories

    path = run / "trajectories" / f"step-{step:06d}.jsonl.gz"
    if not path.is_file():
        raise UsageError(f"run ({run}) has no episodes of step {step}: was keep_episodes above 0?")
    groups: list[TrajectoryGroup] = []
    for episode in read_trajectories(path):
        if episode.member == 0:
            groups.append(TrajectoryGroup([]))
        groups[-1].trajectories.append(episode)
    config = trainer.config
    drop_uninformative(groups, config.prompts, config.curriculum.max_draws, config.curriculum.keep)
    return groups


async def _compared(trainer: Trainer, checkpoint: Path) -> dict[str, Any]:
    """How the weights differ from those that the run saved, which take their place."""
    if not checkpoint.is_dir():
        return {"compared": None}
    ours = await _copied(trainer)
    await trainer.learner.load(checkpoint, trainer.learner.version + 1)
    theirs = await _copied(trainer)
    largest = max(float((ours[n].double() - w.double()).abs().max()) for n, w in theirs.items())
    equal = all(bool((ours[name] == weight).all()) for name, weight in theirs.items())
    return {"compared": str(checkpoint), "equal": equal, "max_difference": largest}


async def _copied(trainer: Trainer) -> dict[str, Tensor]:
    """The learner's weights as they are, on the CPU."""
    handle = await trainer.learner.weights(trainer.learner.version)
    return {name: w.cpu().clone() for name, w in (await handle.tensors()).items()}


def _step_of(checkpoint: Path) -> int:
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found[1]) if found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.replay", ReplayConfig, {}, _run, argv)


def _run(config: ReplayConfig) -> int:
    result = asyncio.run(replay(config))
    answer(result)
    return DIFFERENT if result.get("equal") is False else 0


if __name__ == "__main__":
    sys.exit(main())

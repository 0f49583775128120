"""``python -m rl.replay runs/search``: repeats a run's updates from its recorded episodes.

A run records the episodes of each update in order, with log-probabilities, versions and rewards. An
update depends only on these records and on its initial weights. This holds even if timing decided
which episodes an update got, because episodes were played ahead of the learner. On a CPU the
repeated weights are equal bit for bit.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.cluster.settings import HERE
from rl.errors import UsageError
from rl.policies.engine import PolicyChoice
from rl.policies.local import Local
from rl.run.process.command import answer, report, run_command
from rl.settings.groups import at_least
from rl.settings.parsing.command_line import parse
from rl.settings.parsing.files import read_run
from rl.settings.parsing.from_python import from_python
from rl.settings.train import PRESETS, TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from rl.rollout.trajectory import TrajectoryGroup
    from rl.run.trainer import Trainer

DIFFERENT = 3
"""Exit code if the weights differ."""


@from_python
@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Repeat a run's updates from its recorded episodes, and compare the weights."""

    run: str
    """The run's folder. "run=" may be omitted."""
    until: int = 0
    """The last step to repeat; 0 for the step of the newest checkpoint."""
    out: str = ""
    """Folder in which to save the model; empty to save nothing."""
    here: bool = False
    """Compute on this machine, also if the run's ranks were on a cluster."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        at_least(0, self, "until")


async def replay(config: ReplayConfig) -> dict[str, Any]:
    """Repeat the updates of a run.

    Returns:
        The number of steps, and the difference of the weights from the run's own checkpoint.

    Raises:
        UsageError: the folder holds no run, or the episodes of a step are missing.
    """
    # These load torch; `--help` and a mistyped key do not wait for it.
    from rl.run.folder import RunFolder
    from rl.run.trainer import Trainer
    from rl.runtime.runtime import open_runtime

    run = Path(config.run)
    trained = config_of(run)
    folder = RunFolder(run, trained)
    saved = sorted(folder.checkpoints.glob("step-*"))
    until = config.until or max((_step_of(path) for path in saved), default=0)
    if not until:
        raise UsageError(f"run ({run}) has no checkpoint to compare with: give until=STEP")
    # The local policy, as nothing is sampled and no server is needed.
    alone = replace(trained, policy=PolicyChoice("local", Local()), collectors=1)
    if config.here:
        alone = replace(alone, cluster=HERE)
    async with open_runtime(alone, report) as runtime, Trainer(trained, folder, runtime) as trainer:
        for step in range(1, until + 1):
            metrics = await trainer.learn(_groups_of(trainer, run, step))
            trainer.progress.step = step
            report(f"step {step}/{until}  loss {metrics.get('loss', float('nan')):.6g}")
        result: dict[str, Any] = {"run": str(run), "steps": until}
        if config.out:
            await trainer.learner.save(Path(config.out))
        result |= await _compared(trainer, folder.checkpoints / f"step-{until:06d}")
        if config.out:
            result["model"] = config.out
    return result


def config_of(run: Path) -> TrainConfig:
    """Read the configuration of a run.

    Raises:
        UsageError: the folder holds no run.
    """
    settings = read_run(str(run), "run") | {"resume": "auto", "out": str(run)}
    settings["backup"] = ""  # The run's own folder is repeated, and nothing is copied.
    words = [f"{key}={value}" for key, value in settings.items()]
    return parse(TrainConfig, words, command="python -m rl.replay", presets=PRESETS)


def _groups_of(trainer: Trainer, run: Path, step: int) -> list[TrajectoryGroup]:
    """The recorded groups of a step. Groups that the update dropped are marked."""
    from rl.rollout.dynamic_sampling import drop_uninformative
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.rollout.trajectory_files import read_trajectories

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
    """Load the run's checkpoint, and compare its weights with the repeated weights."""
    if not checkpoint.is_dir():
        return {"compared": None}
    ours = await _copied(trainer)
    await trainer.learner.load(checkpoint, trainer.learner.version + 1)
    theirs = await _copied(trainer)
    largest = max(float((ours[n].double() - w.double()).abs().max()) for n, w in theirs.items())
    equal = all(bool((ours[name] == weight).all()) for name, weight in theirs.items())
    return {"compared": str(checkpoint), "equal": equal, "max_difference": largest}


async def _copied(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the learner's current weights on the CPU."""
    handle = await trainer.learner.weights(trainer.learner.version)
    return {name: w.cpu().clone() for name, w in (await handle.tensors()).items()}


def _step_of(checkpoint: Path) -> int:
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found[1]) if found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.replay", ReplayConfig, {}, _run, argv)


def _run(config: ReplayConfig) -> int:
    result = asyncio.run(replay(config))
    answer(result)
    return DIFFERENT if result.get("equal") is False else 0


if __name__ == "__main__":
    sys.exit(main())

"""Determines the tasks that a command plays, and checks them before torch is loaded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import envs
from envs.datasets.options import RowOptions, dataset_of
from envs.datasets.splits import ALL, EmptySplit
from envs.mixture.parts import MixOptions, Part
from rl.errors import UsageError
from rl.rollout.curriculum import make_curriculum
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import SFTConfig
from rl.settings.parsing.files import read_run
from rl.settings.run import RunConfig
from rl.settings.train import TrainConfig
from tools.registry import PluginImportError, UnknownNameError

GENERATED_TASKS = 512
"""Default number of generated tasks in an evaluation."""


@dataclass(frozen=True, slots=True)
class Played:
    """The tasks that an evaluation plays."""

    split: str
    """The environment's split."""
    tasks: int
    """Number of played tasks."""
    of: int
    """Number of available tasks."""
    what: str
    """Description of the tasks and, for rows, of how they were chosen."""

    def __str__(self) -> str:
        return f"{self.tasks} of {self.of} {self.what}"


def check_splits(config: RunConfig) -> None:
    """Check that the environment can be created, and that no needed split is empty.

    Evaluations use :func:`tasks_to_play` instead.

    Raises:
        UsageError: the environment cannot be created, or a split is empty. The message names the
            option or the split, and the setting that avoids the split.
    """
    if isinstance(config, TrainConfig):
        check_split(config, "train")
        if config.eval.tasks:
            check_split(config, "validation", "; eval.tasks=0 needs none")
        if config.eval.test_tasks:
            check_split(config, "test", "; eval.test_tasks=0 needs none")
    elif isinstance(config, SFTConfig):
        if config.data == "demonstrations":
            check_split(config, "train", "; data=FILE needs none")
        if config.test_tasks:
            check_split(config, "test", "; test_tasks=0 needs none")
    else:
        check_split(config, "train")


def check_warm_start(config: RunConfig) -> None:
    """Check that ``model=tiny``, if the command needs it, has a demonstrator to imitate.

    Raises:
        UsageError: the environment has no demonstrator. A demonstrator that needs a running
            episode passes.
    """
    if config.model != "tiny" or not config.loads_model:
        return
    env = envs.make_from(config.env.env_id, config.env.options)
    if hasattr(env, "conversations"):
        return  # Recorded conversations take the place of a demonstrator.
    try:
        env.demonstrator(np.random.default_rng(0))
    except NotImplementedError as error:
        remedy = f"write {type(env).__name__}.demonstrator"
        if type(env).__module__.startswith("envs."):
            # With rows of the user's own, for example.
            remedy = f"train one without these options first (python -m rl.sft env={env.env_id})"
        raise UsageError(
            f"{env.env_id} has no demonstrator to imitate: {remedy}, or take another "
            f"model than model=tiny: model=FOLDER or a Hugging Face id"
        ) from error
    except Exception:
        # Without an episode, the author's code may raise anything.
        return
    finally:
        env.close()


def check_curriculum(config: TrainConfig) -> None:
    """Check that the environment has the difficulties and copies that the settings need.

    Raises:
        UsageError: it has not.
    """
    env = envs.make_from(config.env.env_id, config.env.options)
    env.close()
    ramp = config.curriculum.ramp_steps or config.steps
    try:
        make_curriculum(
            *(config.curriculum, len(env.tasks), config.seed, ramp * config.prompts),
            env.difficulty,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    if config.algo.row.advantage.turn_rollouts and not env.forkable:
        raise UsageError(
            f"algo.advantage (vine) plays on from copies of an episode, and {env.env_id} has "
            "forkable = False: choose another algo.advantage"
        )


def tasks_to_play(config: EvaluateConfig) -> Played:
    """Determine the tasks that an evaluation plays.

    Raises:
        UsageError: the split is empty, or a row of the data set cannot be a task.
    """
    options, chosen = config.env.options, str(config.split)
    if isinstance(options, MixOptions):
        return _mixture_to_play(config, options)
    try:
        data = dataset_of(envs.env_type(config.env.env_id), options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    split: str = "test" if chosen == "held-out" else chosen
    if data is None:
        of = check_split(config, split)
        tasks = min(config.tasks or GENERATED_TASKS, of)
        return Played(split, tasks, of, f"{split} tasks")
    if split == ALL:
        what = "rows"
    elif data.named:
        what = f"{split} rows"
    elif chosen == "test":
        seen = _trained_on_them(config)
        split, what = ALL, f"rows (no row names a split, so every row counts as test{seen})"
    else:
        what = f"rows (no row names a split: these are for {split} by a hash)"
    there = check_split(config, split, "; split=all plays every row")
    of = data.num_rows
    if data.named and split != ALL:
        of = there + len(data.reasons(split))
    if there < of and (data.named or split == ALL):
        what += f"; {of - there} cannot be tasks"
    return Played(split, min(config.tasks or there, there), of, what)


def _trained_on_them(config: EvaluateConfig) -> str:
    """A notice if the model's own run trained on tasks from the same source."""
    options, checkpoints = config.env.options, Path(config.model).expanduser().parent
    if not isinstance(options, RowOptions) or checkpoints.name != "checkpoints":
        return ""
    try:
        run = read_run(str(checkpoints.parent), "model")
    except UsageError:
        return ""  # No run made the model: its training rows are unknown.
    if run.get("data", "demonstrations") != "demonstrations":
        return ""  # rl.sft learned from a file of conversations.
    trained = run.get("env.tasks", "")
    same = trained == options.tasks or Path(trained).absolute() == Path(options.tasks).absolute()
    if not same or run.get("env") != config.env.env_id:
        return ""
    return ", including rows that this model was trained on: split=held-out omits them"


def _hashed_parts(names: Sequence[str]) -> str:
    """A notice about parts of a mixture whose rows name no split: a hash chose their rows."""
    if not names:
        return ""
    return f" (rows of {', '.join(names)} name no split: a hash chose; split=test plays all rows)"


def _mixture_to_play(config: EvaluateConfig, options: MixOptions) -> Played:
    """The tasks of a mixture; see :func:`tasks_to_play`.

    Rows of each part are chosen as if the part were the whole environment.
    """
    split: str = "test" if config.split == "held-out" else config.split
    try:
        unsplit = options.parts_without_split()
    except ValueError as error:
        raise UsageError(f"env.of: {error}") from error
    if config.split == "test" and unsplit:
        split = ALL
    of = check_split(config, split)
    if split != ALL:
        what = f"{split} tasks{_hashed_parts(unsplit)}"
        return Played(split, min(config.tasks or GENERATED_TASKS, of), of, what)
    options = dataclasses.replace(options, split=split)
    env = envs.make_from(config.env.env_id, options)
    count = min(config.tasks or of, of)
    played = Counter(env.tasks[index].part for index in range(count))
    env.close()
    words = [
        f"{played[index]} {_counted(part)} of {part.name}"
        for index, part in enumerate(options.parts())
    ]
    return Played(split, count, of, f"tasks: {', '.join(words)}")


def _counted(part: Part) -> str:
    return "rows (none names a split)" if part.options.split == ALL else "test tasks"


def check_split(config: RunConfig, split: str, remedy: str = "") -> int:
    """The number of tasks in a split.

    Raises:
        UsageError: the environment cannot be created, or the split is empty. The message about an
            empty split ends with ``remedy``.
    """
    try:
        options = dataclasses.replace(config.env.options, split=split)
        env = envs.make_from(config.env.env_id, options)
    except EmptySplit as error:
        raise UsageError(f"{error}{remedy}") from error
    except (ValueError, UnknownNameError, PluginImportError) as error:
        raise UsageError(str(error)) from error
    env.close()
    return len(env.tasks)

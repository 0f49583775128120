"""``python -m rl.eval model=FOLDER env=code-sandbox``: measures how often a model succeeds."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import envs
from rl.errors import UsageError
from rl.files import discard_if_refused, make_folder, replace_text, write_stdout
from rl.run.evaluation_table import suite_text, table_text
from rl.run.process.activity import Activities
from rl.run.process.command import answer, run_command
from rl.run.screen import Screen
from rl.run.splits import Played, check_warm_start, tasks_to_play
from rl.settings.evaluate import EvaluateConfig
from rl.settings.models import find_model
from rl.settings.parsing.files import as_values
from rl.settings.parsing.plain import to_plain, without_secrets
from rl.settings.run import run_path

if TYPE_CHECKING:
    from rl.evaluation.comparison import Evaluated
    from rl.evaluation.measures import Sample
    from rl.evaluation.store import EpisodeStore
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.tracking.callback import Callback
    from rl.tracking.tracker import Tracker

SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")
"""Settings of the sampling that the result states."""


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
    check_warm_start(config)
    _check_reward_model(config.reward_model)
    times = f", each {config.episodes} times" if config.episodes > 1 else ""
    screen.report(f"playing {played}{times}, policy {config.policy.name}")
    # These load torch; the first lines do not wait for it.
    from rl.evaluation.store import EpisodeStore
    from rl.tracking.sink import RunInfo
    from rl.tracking.tracker import Tracker

    other = _other_evaluation(config)
    store = EpisodeStore(config) if config.out else None
    if store is not None:
        store.start(played.tasks)
    run = RunInfo("eval", Path(config.out or "."), without_secrets(as_values(to_plain(config))))
    tracker = Tracker(run, config, (), screen.report, callbacks)
    services: dict[str, float] = {}
    async with tracker:
        if store is not None and store.is_complete(played.tasks):
            screen.report(f"all episodes are in {store.folder} already")
            await asyncio.to_thread(tracker.open)
            groups = store.groups(played.tasks)
            tracker.evaluated(played.split, groups)
        else:
            groups, services = await _play(config, played, store, screen, tracker)
        result = await asyncio.to_thread(_result, config, played, groups)
        result |= services
        if config.compare:
            result |= await _compared(config, screen, result, groups, other)
        tracker.log({"step": 0, **result})
        await asyncio.to_thread(tracker.call, {"step": 0, **result})
        tracker.finish(result)
    return result, groups


async def _play(
    config: EvaluateConfig,
    played: Played,
    store: EpisodeStore | None,
    screen: Screen,
    tracker: Tracker,
) -> tuple[list[TrajectoryGroup], dict[str, float]]:
    """Play the episodes that ``store`` lacks.

    Returns:
        All episodes, and the metrics of the environment's services.
    """
    from rl.runtime.endpoint import open_endpoint
    from rl.runtime.runtime import EVALUATE, open_runtime

    if store is not None and store.played:
        screen.report(f"{len(store.played)} episodes are in {store.folder} already")
    activities = Activities(on_count=screen.count)
    if not config.loads_model:
        async with open_endpoint(config, screen.report, activities) as endpoint:
            await asyncio.to_thread(tracker.open)
            groups = await endpoint.play(
                *(played.split, played.tasks, EVALUATE, config.episodes), kept=store
            )
            tracker.evaluated(played.split, groups)
            return groups, {
                **await endpoint.service_metrics.take(),
                **endpoint.context.policy.take_metrics(),
            }
    logs = Path(config.out) / "logs" if config.out else None
    async with open_runtime(config, screen.report, logs, activities=activities) as runtime:
        runtime.on_evaluated = tracker.evaluated
        await asyncio.to_thread(tracker.open)
        _, groups = await runtime.evaluate(
            *(played.split, played.tasks, EVALUATE, config.sampling_params, config.episodes),
            kept=store,
        )
        return groups, await runtime.service_metrics.take()


def _result(
    config: EvaluateConfig, played: Played, groups: Sequence[TrajectoryGroup]
) -> dict[str, object]:
    """The numbers of an evaluation, without those of services and of a comparison."""
    from rl.evaluation.measures import measures
    from rl.run.metrics.episodes import rollout_metrics
    from rl.run.metrics.intervals import pass_rate_of_tasks

    sample = _sample(config, played.split, groups)
    rate = pass_rate_of_tasks(sample.successes)
    rewards = _rewards(config, sample) if config.reward_model else None
    return {
        "env": config.env.env_id,
        "model": config.model_name,
        "split": played.split,
        "tasks": played.tasks,
        "played": str(played),
        "score": sample.score or "return",
        "success": rate.rate,
        "success_low": rate.low,
        "success_high": rate.high,
        "interval_of": _population(played.tasks, config.episodes),
        "episodes": rate.count,
        **{name: getattr(config.sampling, name) for name in SAMPLING},
        "seed": config.seed,
        **measures(sample, rewards),
        **rollout_metrics(groups, sample.score, _reward_range(config, played.split)),
    }


def _sample(config: EvaluateConfig, split: str, groups: Sequence[TrajectoryGroup]) -> Sample:
    from rl.evaluation.measures import Sample

    score = envs.env_type(config.env.env_id).success_score
    best = 1.0 if score else _reward_range(config, split)[1]
    return Sample(groups, score, best, config.k)


def _reward_range(config: EvaluateConfig, split: str) -> tuple[float, float]:
    """The environment's least and greatest return of an episode."""
    env = envs.make_from(config.env.env_id, dataclasses.replace(config.env.options, split=split))
    env.close()
    return env.reward_range


def _check_reward_model(folder: str) -> None:
    """Check, before episodes are played, that a reward model is there if one is named."""
    from rl.preferences.shaping import check_folder

    if not folder:
        return
    try:
        check_folder(find_model(folder, "reward_model"))
    except (OSError, ValueError) as error:
        raise UsageError(f"reward_model ({folder}): {error}") from error


def _rewards(config: EvaluateConfig, sample: Sample) -> list[list[float]]:
    """The reward model's score of each episode.

    Raises:
        UsageError: ``reward_model`` is no reward model for the policy's tokens.
    """
    from rl.preferences.shaping import score_episodes

    try:
        return score_episodes(config.reward_model, sample.tasks, config.device)
    except (OSError, ValueError) as error:
        raise UsageError(f"reward_model ({config.reward_model}): {error}") from error


def _other_evaluation(config: EvaluateConfig) -> Evaluated | None:
    """The earlier evaluation that ``compare`` names, or None if it names a model.

    Raises:
        UsageError: ``compare`` names neither, names a model that an endpoint cannot serve, or the
            earlier evaluation had other settings of the environment.
    """
    from rl.evaluation.comparison import is_evaluation, read_evaluation

    if is_evaluation(config.compare):
        return read_evaluation(config.compare, config)
    if config.compare and not config.loads_model:
        raise UsageError(
            f"compare ({config.compare}) must be the folder of an earlier evaluation with "
            f"policy={config.policy.name}: evaluate the other model with out=FOLDER first"
        )
    if config.compare:
        find_model(config.compare, "compare")
    return None


async def _compared(
    config: EvaluateConfig,
    screen: Screen,
    result: Mapping[str, object],
    groups: Sequence[TrajectoryGroup],
    other: Evaluated | None,
) -> dict[str, object]:
    """The paired comparison with the model or the evaluation that ``compare`` names."""
    from rl.evaluation.comparison import Evaluated, compare, warning

    if other is None:
        model = find_model(config.compare, "compare")
        out = str(Path(config.out) / "compare") if config.out else ""
        settings = dataclasses.replace(config, model=model, compare="", out=out)
        screen.report(f"evaluation of {model}, to compare")
        if out:
            make_folder(run_path(out, settings))
        other = Evaluated(*await evaluate(settings, screen))
        write_evaluation(settings, *(other.result, other.groups))
    best = _sample(config, str(result["split"]), groups).best
    scorer = partial(_rewards, config) if config.reward_model else None
    this = Evaluated(result, groups)
    numbers = await asyncio.to_thread(compare, this, other, best, config.k, scorer)
    models = {"model": str(result["model"]), "compare": str(other.result["model"])}
    for notice in filter(None, (_start_notice(key, name) for key, name in models.items())):
        screen.report(f"warning: {notice}")
    if other.settings:
        screen.report(f"warning: compare ({config.compare}) has other settings: {other.settings}")
    if found := warning(numbers):
        numbers["compare/warning"] = found
        screen.report(f"warning: {found}")
    return numbers


def _start_notice(key: str, model: str) -> str:
    """A sentence if a model is a run's best checkpoint and the run's start, else "".

    Args:
        key: the setting that names the model.
        model: the model's folder, or another name of a model.
    """
    from rl.learner.checkpoint import TRAINER_STATE, load_trainer_state

    folder = Path(model).expanduser()
    if folder.name != "best" or not (folder / TRAINER_STATE).is_file():
        return ""
    if load_trainer_state(folder).get("step") != 0:
        return ""
    return (
        f"{key} ({model}): the best checkpoint of this run is its start, because no later "
        "validation was better: the weights are untrained; its checkpoints/step-* have trained ones"
    )


def _population(tasks: int, episodes: int) -> str:
    """The population of tasks for which the success has its 95% interval, in words."""
    clustered = f", each played {episodes} times" if episodes > 1 else ""
    return f"tasks like these {tasks}{clustered}: it widens with the differences between tasks"


async def measure(config: EvaluateConfig) -> tuple[dict[str, object], list[TrajectoryGroup]]:
    """Create the folder of ``config`` and run :func:`evaluate` with progress on the screen.

    With ``suite``, this evaluates each data set of the suite, and writes its folder.
    """
    if config.suite:
        from rl.evaluation.suite import play_suite

        return await play_suite(config, _measure_and_write)
    with ExitStack() as stack:
        if config.out:
            folder = run_path(config.out, config)
            stack.enter_context(discard_if_refused(folder))
            make_folder(folder)
        screen = stack.enter_context(Screen())
        screen.report(f"evaluation of {config.model_name} in {config.env.env_id}")
        return await evaluate(config, screen)


async def _measure_and_write(
    config: EvaluateConfig,
) -> tuple[dict[str, object], list[TrajectoryGroup]]:
    result, groups = await measure(config)
    write_evaluation(config, result, groups)
    return result, groups


def write_evaluation(
    config: EvaluateConfig, result: Mapping[str, object], groups: Sequence[TrajectoryGroup]
) -> None:
    """Write the result, the episodes and a picture into the folder of ``config``, if there is one.

    Raises:
        RunFailure: a file cannot be written.
    """
    from rl.evaluation.picture import draw_evaluation
    from rl.evaluation.store import PICTURE, RESULT, SUITE, finite, write_episodes

    if not config.out:
        return
    text = json.dumps(finite(result), indent=2) + "\n"
    if config.suite:
        # Each data set has a folder of its own.
        replace_text(Path(config.out).expanduser() / SUITE, text)
        return
    folder = run_path(config.out, config)
    write_episodes(folder, groups)
    replace_text(folder / RESULT, text)
    draw_evaluation(result, folder / PICTURE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    return run_command("rl.eval", EvaluateConfig, {}, lambda config: _run(config, words), words)


def _run(config: EvaluateConfig, words: Sequence[str]) -> int:
    from rl.evaluation.store import finite

    if config.suite:
        from rl.evaluation.suite import check_words

        check_words(config, words)
    result, groups = asyncio.run(measure(config))
    # Before writing files, so that a full disk loses no result.
    if config.json:
        answer(finite(result))
    else:
        write_stdout(suite_text(result) if config.suite else table_text(result))
    write_evaluation(config, result, groups)
    return 0


if __name__ == "__main__":
    sys.exit(main())

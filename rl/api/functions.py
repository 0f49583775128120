"""The commands of ``rl`` as functions: ``rl.fit``, ``rl.evaluate`` and the others.

Each function takes its command's settings, runs the work in a thread with its own event loop, and
returns an object with the results. The functions also work inside a running event loop, as in a
notebook. Each has an asynchronous form with an ``a`` before its name. Ctrl-C stops a run in the
same way as a command. Afterwards the process has no thread, signal handler or torch setting of the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rl.api.caller import blocking, wait_for, while_awaited
from rl.api.job import Job
from rl.api.results import Evaluation, Result, Run, read_run
from rl.distill import DistillConfig
from rl.files import discard_if_refused
from rl.judge import JudgeConfig
from rl.merge import MergeConfig
from rl.pipeline import PipelineConfig, read_stages, unfinished
from rl.push import PushConfig
from rl.replay import ReplayConfig
from rl.run.metrics.intervals import PassRate
from rl.run.process.command import with_model_folder
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import DPOConfig, RewardModelConfig, SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.parsing.files import table_words
from rl.settings.run import resume_call, run_path
from rl.settings.train import TrainConfig
from rl.step_labels import StepLabelsConfig
from rl.tracking.callback import Callback


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C stopped a run cleanly; ``run`` is the stopped run."""

    def __init__(self, run: Run) -> None:
        super().__init__(
            f"stopped after step {run.steps}; continue with "
            f"{resume_call(run.config['env']['env_id'], run.folder)}"
        )
        self.run = run


def fit(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> Run:
    """Train a language model in an environment by reinforcement learning: ``python -m rl.train``.

    Args:
        config: the settings; ``rl.TrainConfig(env="code-sandbox", steps=10)``.
        callbacks: called at each step, in addition to those that ``config`` names.

    Raises:
        UsageError: a setting is wrong, or the folder holds another run.
        RunFailure: the run cannot continue; RunStalled: the run made no progress.
        PolicyFailure, EnvFailure, SandboxUnavailable, DatasetUnavailable: infrastructure failed.
        Interrupted: Ctrl-C stopped the run.
    """
    return _stopped_or_not(wait_for(partial(_fit, callbacks=callbacks), config))


async def afit(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> Run:
    """Asynchronous form of :func:`fit`; the caller's event loop stays free.

    Raises:
        CancelledError: the call was cancelled, and the run has stopped cleanly.
    """
    return _stopped_or_not(await while_awaited(partial(_fit, callbacks=callbacks), config))


def evaluate(config: EvaluateConfig) -> Evaluation:
    """Measure how often a model succeeds in an environment: ``python -m rl.eval``."""
    return wait_for(_evaluate, config)


async def aevaluate(config: EvaluateConfig) -> Evaluation:
    """Asynchronous form of :func:`evaluate`."""
    return await while_awaited(_evaluate, config)


def fit_sft(config: SFTConfig) -> Result:
    """Train a model on conversations: ``python -m rl.sft``."""
    return wait_for(_fit_sft, config)


async def afit_sft(config: SFTConfig) -> Result:
    """Asynchronous form of :func:`fit_sft`."""
    return await while_awaited(_fit_sft, config)


def fit_dpo(config: DPOConfig) -> Result:
    """Train a policy on preferences directly: ``python -m rl.dpo``."""
    return wait_for(_fit_dpo, config)


async def afit_dpo(config: DPOConfig) -> Result:
    """Asynchronous form of :func:`fit_dpo`."""
    return await while_awaited(_fit_dpo, config)


def fit_reward_model(config: RewardModelConfig) -> Result:
    """Train a reward model on preferences or labelled steps: ``python -m rl.reward_model``."""
    return wait_for(_fit_reward_model, config)


async def afit_reward_model(config: RewardModelConfig) -> Result:
    """Asynchronous form of :func:`fit_reward_model`."""
    return await while_awaited(_fit_reward_model, config)


def distill_episodes(config: DistillConfig) -> Result:
    """Play training tasks and write the episodes as training data: ``python -m rl.distill``."""
    return wait_for(_distill, config)


async def adistill_episodes(config: DistillConfig) -> Result:
    """Asynchronous form of :func:`distill_episodes`."""
    return await while_awaited(_distill, config)


def judge_pairs(config: JudgeConfig) -> Result:
    """Label pairs of answers with a judge model: ``python -m rl.judge``."""
    return wait_for(_judge, config)


async def ajudge_pairs(config: JudgeConfig) -> Result:
    """Asynchronous form of :func:`judge_pairs`."""
    return await while_awaited(_judge, config)


def label_steps(config: StepLabelsConfig) -> Result:
    """Label the steps of solutions by sampled continuations: ``python -m rl.step_labels``."""
    return wait_for(_label_steps, config)


async def alabel_steps(config: StepLabelsConfig) -> Result:
    """Asynchronous form of :func:`label_steps`."""
    return await while_awaited(_label_steps, config)


def merge_models(config: MergeConfig) -> Result:
    """Average the weights of models: ``python -m rl.merge``."""
    return wait_for(_merge, config)


async def amerge_models(config: MergeConfig) -> Result:
    """Asynchronous form of :func:`merge_models`."""
    return await while_awaited(_merge, config)


def replay_run(config: ReplayConfig) -> Result:
    """Repeat a run's updates from its episodes, and compare weights: ``python -m rl.replay``."""
    return wait_for(_replay, config)


async def areplay_run(config: ReplayConfig) -> Result:
    """Asynchronous form of :func:`replay_run`."""
    return await while_awaited(_replay, config)


def run_pipeline(config: PipelineConfig) -> dict[str, Path]:
    """Run the unfinished stages of a pipeline file: ``python -m rl.pipeline``.

    Returns:
        The output of each stage, by the stage's name.
    """
    return wait_for(_run_pipeline, config)


async def arun_pipeline(config: PipelineConfig) -> dict[str, Path]:
    """Asynchronous form of :func:`run_pipeline`."""
    return await while_awaited(_run_pipeline, config)


def push_to_hub(config: PushConfig) -> Result:
    """Upload a trained model and its card to the Hugging Face hub: ``python -m rl.push``."""
    return wait_for(_push_to_hub, config)


async def apush_to_hub(config: PushConfig) -> Result:
    """Asynchronous form of :func:`push_to_hub`."""
    return await while_awaited(_push_to_hub, config)


async def _fit(config: TrainConfig, job: Job[Any], callbacks: Sequence[Callback] = ()) -> Run:
    from rl.train import train

    with discard_if_refused(run_path(config.out, config, config.algo.name)):
        outcome = await train(config, job, callbacks)
    # A finished run that was stopped before a further step is finished in its folder only.
    return replace(read_run(outcome.folder), finished=outcome.finished)


def _stopped_or_not(run: Run) -> Run:
    if not run.finished:
        raise Interrupted(run)
    return run


async def _evaluate(config: EvaluateConfig, job: Job[Any]) -> Evaluation:
    from rl.eval import measure, write_evaluation

    result, groups = await measure(config)
    write_evaluation(config, result, groups)
    numbers: Mapping[str, Any] = result
    low, high = numbers["success_low"], numbers["success_high"]
    return Evaluation(
        success=PassRate(numbers["success"], low, high, numbers["episodes"]),
        metrics=numbers,
        groups=groups,
        folder=run_path(config.out, config) if config.out else None,
    )


async def _fit_sft(config: SFTConfig, job: Job[Any]) -> Result:
    from rl.sft import finetune

    return _made(await finetune(config), "model")


async def _fit_dpo(config: DPOConfig, job: Job[Any]) -> Result:
    from rl.dpo import train_dpo

    return _made(blocking(train_dpo, config, job), "model")


async def _fit_reward_model(config: RewardModelConfig, job: Job[Any]) -> Result:
    from rl.reward_model import train_reward_model

    return _made(blocking(train_reward_model, config, job), "model")


async def _distill(config: DistillConfig, job: Job[Any]) -> Result:
    from rl.distill import distill

    return _made(await distill(config), "conversations")


async def _judge(config: JudgeConfig, job: Job[Any]) -> Result:
    from rl.judge import judge

    return _made(await judge(config), "judged")


async def _label_steps(config: StepLabelsConfig, job: Job[Any]) -> Result:
    from rl.step_labels import label

    with discard_if_refused(run_path(config.out, config)):
        return _made(await label(config), "labelled")


async def _merge(config: MergeConfig, job: Job[Any]) -> Result:
    from rl.merge import merge

    return _made(blocking(merge, config, job), "model")


async def _replay(config: ReplayConfig, job: Job[Any]) -> Result:
    from rl.replay import replay

    return _made(await replay(config), "model")


async def _push_to_hub(config: PushConfig, job: Job[Any]) -> Result:
    from rl.push import push

    metrics = blocking(push, config, job)
    return Result(None, Path(str(metrics["model"])), metrics)


def _made(metrics: Mapping[str, object], key: str) -> Result:
    if key not in metrics:
        return Result(None, None, metrics)
    made = Path(str(metrics[key]))
    # A model is in checkpoints/last of its folder.
    return Result(made.parents[1] if key == "model" else made.parent, made, metrics)


_STAGES: dict[str, Callable[[Any, Job[Any]], Coroutine[Any, Any, Run | Result]]] = {
    "rl.train": _fit,
    "rl.sft": _fit_sft,
    "rl.reward_model": _fit_reward_model,
    "rl.dpo": _fit_dpo,
    "rl.distill": _distill,
    "rl.judge": _judge,
    "rl.merge": _merge,
}
"""The function that does a stage's work, by the stage's command."""


async def _run_pipeline(config: PipelineConfig, job: Job[Any]) -> dict[str, Path]:
    stages = read_stages(config.file, config.folder, table_words(config.settings))
    for stage, argv in unfinished(stages):
        command = stage.command
        words = parse(command.config, argv, command=command.module, presets=command.presets)
        made = await _STAGES[command.module](with_model_folder(words), job)
        if isinstance(made, Run):
            _stopped_or_not(made)
    return {stage.name: stage.product for stage in stages}

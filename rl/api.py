"""The commands of ``rl`` as functions: ``rl.fit``, ``rl.evaluate`` and the others.

Each takes the settings of its command, runs it in a thread with an event loop of its own, and
returns what came out as an object. A function works where an event loop runs already, as in a
notebook; its twin with an ``a`` before its name is awaited. Ctrl-C stops a run as it stops a
command. Nothing of a run is left in the process: no thread, no signal handler, no setting of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rl.cli import parse
from rl.command import with_model_folder
from rl.config import EvaluateConfig, SFTConfig, TrainConfig, run_path
from rl.distill import DistillConfig
from rl.judge import JudgeConfig
from rl.merge import MergeConfig
from rl.pipeline import PipelineConfig, read_stages, unfinished
from rl.preferences.config import DPOConfig, RewardModelConfig
from rl.replay import ReplayConfig
from rl.results import Evaluation, Result, Run, read_run
from rl.run.caller import blocking, here, while_awaited
from rl.run.files import discard_if_refused
from rl.run.job import Job
from rl.run.metrics import PassRate
from rl.settings.files import table_words
from rl.step_labels import StepLabelsConfig
from rl.tracking.callback import Callback


class Interrupted(KeyboardInterrupt):
    """Raised when Ctrl-C has stopped a run cleanly; ``run`` is what it left."""

    def __init__(self, run: Run) -> None:
        super().__init__(
            f"stopped after step {run.steps}; go on with "
            f"rl.fit(rl.TrainConfig(resume={str(run.folder)!r}))"
        )
        self.run = run


def fit(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> Run:
    """Train a language model in an environment by reinforcement learning: ``python -m rl.train``.

    Args:
        config: of the run; ``rl.TrainConfig(env="code-sandbox", steps=10)``.
        callbacks: called at each step, beside those that ``config`` names.

    Raises:
        UsageError: a setting is wrong, or the folder holds another run.
        RunFailure: the run cannot go on; RunStalled: nothing in it got further.
        PolicyFailure, EnvFailure, SandboxUnavailable, DatasetUnavailable: a part of it cannot.
        Interrupted: Ctrl-C stopped it; its ``run`` is what was left.
    """
    return _stopped_or_not(here(partial(_fit, callbacks=callbacks), config))


async def afit(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> Run:
    """As :func:`fit`; the caller's event loop is free meanwhile.

    Raises:
        CancelledError: the call was cancelled, and the run has stopped cleanly.
    """
    return _stopped_or_not(await while_awaited(partial(_fit, callbacks=callbacks), config))


def evaluate(config: EvaluateConfig) -> Evaluation:
    """Measure how often a model succeeds in an environment: ``python -m rl.eval``."""
    return here(_evaluate, config)


async def aevaluate(config: EvaluateConfig) -> Evaluation:
    """As :func:`evaluate`, awaited."""
    return await while_awaited(_evaluate, config)


def fit_sft(config: SFTConfig) -> Result:
    """Train a model to say what the authors of conversations said: ``python -m rl.sft``."""
    return here(_fit_sft, config)


async def afit_sft(config: SFTConfig) -> Result:
    """As :func:`fit_sft`, awaited."""
    return await while_awaited(_fit_sft, config)


def fit_dpo(config: DPOConfig) -> Result:
    """Train a policy on preferences directly: ``python -m rl.dpo``."""
    return here(_fit_dpo, config)


async def afit_dpo(config: DPOConfig) -> Result:
    """As :func:`fit_dpo`, awaited."""
    return await while_awaited(_fit_dpo, config)


def fit_reward_model(config: RewardModelConfig) -> Result:
    """Train a reward model on preferences or labelled steps: ``python -m rl.reward_model``."""
    return here(_fit_reward_model, config)


async def afit_reward_model(config: RewardModelConfig) -> Result:
    """As :func:`fit_reward_model`, awaited."""
    return await while_awaited(_fit_reward_model, config)


def distill_episodes(config: DistillConfig) -> Result:
    """Write down what a model says in training tasks: ``python -m rl.distill``."""
    return here(_distill, config)


async def adistill_episodes(config: DistillConfig) -> Result:
    """As :func:`distill_episodes`, awaited."""
    return await while_awaited(_distill, config)


def judge_pairs(config: JudgeConfig) -> Result:
    """Label pairs of answers by the word of a model: ``python -m rl.judge``."""
    return here(_judge, config)


async def ajudge_pairs(config: JudgeConfig) -> Result:
    """As :func:`judge_pairs`, awaited."""
    return await while_awaited(_judge, config)


def label_steps(config: StepLabelsConfig) -> Result:
    """Label the steps of solutions by trial: ``python -m rl.step_labels``."""
    return here(_label_steps, config)


async def alabel_steps(config: StepLabelsConfig) -> Result:
    """As :func:`label_steps`, awaited."""
    return await while_awaited(_label_steps, config)


def merge_models(config: MergeConfig) -> Result:
    """Average the weights of models: ``python -m rl.merge``."""
    return here(_merge, config)


async def amerge_models(config: MergeConfig) -> Result:
    """As :func:`merge_models`, awaited."""
    return await while_awaited(_merge, config)


def replay_run(config: ReplayConfig) -> Result:
    """Repeat a run's updates from its episodes and compare weights: ``python -m rl.replay``."""
    return here(_replay, config)


async def areplay_run(config: ReplayConfig) -> Result:
    """As :func:`replay_run`, awaited."""
    return await while_awaited(_replay, config)


def run_pipeline(config: PipelineConfig) -> dict[str, Path]:
    """Run the stages of a file that are not done yet: ``python -m rl.pipeline``.

    Returns:
        What each stage made, by its name.
    """
    return here(_run_pipeline, config)


async def arun_pipeline(config: PipelineConfig) -> dict[str, Path]:
    """As :func:`run_pipeline`, awaited."""
    return await while_awaited(_run_pipeline, config)


async def _fit(config: TrainConfig, job: Job[Any], callbacks: Sequence[Callback] = ()) -> Run:
    from rl.train import train

    with discard_if_refused(run_path(config.out, config, config.algo.name)):
        outcome = await train(config, job, callbacks)
    return read_run(outcome.folder)


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


def _made(told: Mapping[str, object], key: str) -> Result:
    if key not in told:
        return Result(None, None, told)
    made = Path(str(told[key]))
    # A model is in checkpoints/last of its folder.
    return Result(made.parents[1] if key == "model" else made.parent, made, told)


_STAGES: dict[str, Callable[[Any, Job[Any]], Coroutine[Any, Any, Run | Result]]] = {
    "rl.train": _fit,
    "rl.sft": _fit_sft,
    "rl.reward_model": _fit_reward_model,
    "rl.dpo": _fit_dpo,
    "rl.distill": _distill,
    "rl.judge": _judge,
    "rl.merge": _merge,
}
"""By command, the work of a stage."""


async def _run_pipeline(config: PipelineConfig, job: Job[Any]) -> dict[str, Path]:
    stages = read_stages(config.file, config.folder, table_words(config.settings))
    for stage, argv in unfinished(stages):
        command = stage.command
        words = parse(command.config, argv, command=command.module, presets=command.presets)
        made = await _STAGES[command.module](with_model_folder(words), job)
        if isinstance(made, Run):
            _stopped_or_not(made)
    return {stage.name: stage.product for stage in stages}

"""Reinforcement learning of language models: ``run = rl.fit(rl.TrainConfig(env="code-sandbox"))``.

Each command (``python -m rl.train``) has a function here; docs/python.md lists them. Names are
imported on first access: ``import rl`` alone loads neither torch nor an environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl.run.process.identity import check_packages
from rl.run.process.start import say_interrupts

say_interrupts()
check_packages()

if TYPE_CHECKING:
    from rl.api.functions import Interrupted as Interrupted
    from rl.api.functions import adistill_episodes as adistill_episodes
    from rl.api.functions import aevaluate as aevaluate
    from rl.api.functions import afit as afit
    from rl.api.functions import afit_dpo as afit_dpo
    from rl.api.functions import afit_reward_model as afit_reward_model
    from rl.api.functions import afit_sft as afit_sft
    from rl.api.functions import ajudge_pairs as ajudge_pairs
    from rl.api.functions import alabel_steps as alabel_steps
    from rl.api.functions import amerge_models as amerge_models
    from rl.api.functions import apush_to_hub as apush_to_hub
    from rl.api.functions import areplay_run as areplay_run
    from rl.api.functions import arun_pipeline as arun_pipeline
    from rl.api.functions import distill_episodes as distill_episodes
    from rl.api.functions import evaluate as evaluate
    from rl.api.functions import fit as fit
    from rl.api.functions import fit_dpo as fit_dpo
    from rl.api.functions import fit_reward_model as fit_reward_model
    from rl.api.functions import fit_sft as fit_sft
    from rl.api.functions import judge_pairs as judge_pairs
    from rl.api.functions import label_steps as label_steps
    from rl.api.functions import merge_models as merge_models
    from rl.api.functions import push_to_hub as push_to_hub
    from rl.api.functions import replay_run as replay_run
    from rl.api.functions import run_pipeline as run_pipeline
    from rl.api.results import Evaluation as Evaluation
    from rl.api.results import Result as Result
    from rl.api.results import Run as Run
    from rl.api.results import read_run as read_run
    from rl.distill import DistillConfig as DistillConfig
    from rl.errors import RunFailure as RunFailure
    from rl.errors import RunStalled as RunStalled
    from rl.errors import Unclosed as Unclosed
    from rl.errors import UsageError as UsageError
    from rl.judge import JudgeConfig as JudgeConfig
    from rl.learner.settings import OptimizerConfig as OptimizerConfig
    from rl.merge import MergeConfig as MergeConfig
    from rl.pipeline import PipelineConfig as PipelineConfig
    from rl.push import PushConfig as PushConfig
    from rl.replay import ReplayConfig as ReplayConfig
    from rl.rollout.curriculum import CurriculumConfig as CurriculumConfig
    from rl.settings.chat import ChatConfig as ChatConfig
    from rl.settings.evaluate import EvaluateConfig as EvaluateConfig
    from rl.settings.finetuning import DPOConfig as DPOConfig
    from rl.settings.finetuning import RewardModelConfig as RewardModelConfig
    from rl.settings.finetuning import SFTConfig as SFTConfig
    from rl.settings.groups import EvalConfig as EvalConfig
    from rl.settings.groups import SamplingConfig as SamplingConfig
    from rl.settings.groups import TextsConfig as TextsConfig
    from rl.settings.groups import TinyRecipe as TinyRecipe
    from rl.settings.lora import LoraConfig as LoraConfig
    from rl.settings.train import PRESETS as PRESETS
    from rl.settings.train import TrainConfig as TrainConfig
    from rl.step_labels import StepLabelsConfig as StepLabelsConfig
    from rl.tracking.callback import Callback as Callback

_MODULES = {
    "rl.api.functions": (
        "Interrupted adistill_episodes aevaluate afit afit_dpo afit_reward_model afit_sft "
        "ajudge_pairs alabel_steps amerge_models apush_to_hub areplay_run arun_pipeline "
        "distill_episodes evaluate fit fit_dpo fit_reward_model fit_sft judge_pairs label_steps "
        "merge_models push_to_hub replay_run run_pipeline"
    ),
    "rl.distill": "DistillConfig",
    "rl.errors": "RunFailure RunStalled Unclosed UsageError",
    "rl.judge": "JudgeConfig",
    "rl.learner.settings": "OptimizerConfig",
    "rl.merge": "MergeConfig",
    "rl.pipeline": "PipelineConfig",
    "rl.push": "PushConfig",
    "rl.replay": "ReplayConfig",
    "rl.api.results": "Evaluation Result Run read_run",
    "rl.rollout.curriculum": "CurriculumConfig",
    "rl.settings.chat": "ChatConfig",
    "rl.settings.groups": "EvalConfig SamplingConfig TextsConfig TinyRecipe",
    "rl.settings.evaluate": "EvaluateConfig",
    "rl.settings.lora": "LoraConfig",
    "rl.settings.finetuning": "DPOConfig RewardModelConfig SFTConfig",
    "rl.settings.train": "PRESETS TrainConfig",
    "rl.step_labels": "StepLabelsConfig",
    "rl.tracking.callback": "Callback",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_MEANT = {
    "train": "fit",
    "eval": "evaluate",
    "sft": "fit_sft",
    "dpo": "fit_dpo",
    "reward_model": "fit_reward_model",
    "distill": "distill_episodes",
    "judge": "judge_pairs",
    "merge": "merge_models",
    "step_labels": "label_steps",
    "push": "push_to_hub",
    "replay": "replay_run",
    "pipeline": "run_pipeline",
}
"""The function of each command, by the command's name."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
    if name in _MEANT:
        message = (
            f"rl.{name} is the module of a command: call rl.{_MEANT[name]}, or import rl.{name}"
        )
        raise AttributeError(message)
    if name.startswith("__"):
        raise AttributeError(f"module 'rl' has no attribute {name!r}")
    from tools.registry import closest

    hint = closest(name, _HOMES)
    meant = f". Did you mean {hint!r}?" if hint else ""
    raise AttributeError(f"module 'rl' has no attribute {name!r}{meant}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

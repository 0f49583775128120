"""The plan of a run for a terminal, and the check that a run fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rl.errors import UsageError
from rl.planning.advice import MIN_ROW, settings_that_fit
from rl.planning.live_bytes import gib
from rl.planning.memory import Planner
from rl.runtime.deterministic import fix_workspace
from rl.runtime.model import device_of
from rl.settings.train import TrainConfig


def explain(config: TrainConfig) -> str:
    """The memory plan as lines of text, or "" if the run has no plan.

    If the run does not fit, the text ends with settings that fit.
    """
    if not _is_planned(config):
        return ""
    try:
        planner = Planner(config)
        plan = planner.plan(config)
    except Exception as error:
        return _no_plan(error)
    lines = plan.table()
    return lines if plan.fits else f"{lines}: {_advice(planner, config)}"


def check_memory(config: TrainConfig, report: Callable[[str], None]) -> None:
    """Refuse a run that cannot fit into a GPU's memory, before anything is loaded.

    A run on a CPU is not checked, unless ``plan.gpu_gb`` is set.

    Without ``context_length``, an episode can fill the model's window, but few episodes do. Such a
    run is refused only if episodes of :data:`MIN_ROW` tokens do not fit. Otherwise, ``report`` gets
    a line about the memory that longer episodes need.

    Raises:
        UsageError: the run cannot fit, or ``deterministic`` needs a new process.
    """
    if not _is_planned(config):
        return
    fix_workspace(config)  # the plan asks CUDA for the size of the device
    if not config.plan.gpu_gb and device_of(config).type != "cuda":
        return
    try:
        planner = Planner(config)
        plan = planner.plan(config)
    except Exception as error:
        report(_no_plan(error))
        return
    if plan.fits:
        return
    problem = (
        f"the run needs {gib(plan.peak)} of {planner.device}, if episodes "
        f"have {plan.row} tokens: {_advice(planner, config)} (--dry-run shows the parts)"
    )
    short = replace(config, context_length=MIN_ROW)
    if config.context_length or not planner.plan(short).fits:
        raise UsageError(problem)
    report(problem)


def _is_planned(config: TrainConfig) -> bool:
    """Whether the run has a plan: its learner is no plug-in's, and its model is not ``tiny``."""
    return config.model != "tiny" and config.learner.own


def _no_plan(error: Exception) -> str:
    """The line that replaces a plan after an error. A run must not fail because it has no plan."""
    return f"no memory plan: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def _advice(planner: Planner, config: TrainConfig) -> str:
    words = settings_that_fit(planner, config)
    return f"give {words}" if words else "give a smaller model"

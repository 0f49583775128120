"""The costs of a run's parts, fitted to the seconds that its steps took.

Each cost is a least-squares estimate that is at least 0. The counts that a cost multiplies come
from the run's files: the learner's tokens, and the decoding steps, rows and prompt tokens of the
simulated samplers (:mod:`rl.planning.rollouts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rl.errors import UsageError
from rl.planning.recorded import Recorded
from rl.planning.rollouts import Samplers, requests

_ROUNDS = 6
"""Number of times that the samplers are simulated with the costs of the round before."""
_APART = 1.5
"""The learner's fixed cost is fitted if the most tokens of a step are this multiple of the fewest.
Otherwise all its seconds count as proportional to the tokens."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of each part of a step."""

    step_s: float
    """A decoding step of a sampler, besides its rows."""
    row_s: float
    """Each row of a decoding step."""
    prefill_s: float
    """A prompt token."""
    learn_fixed_s: float
    """An update, besides its tokens."""
    learn_token_s: float
    """A token of the learner, forward and backward."""
    sync_s: float
    """Sending the weights, to all samplers at the same time."""
    episode_s: float
    """What the controller does with an episode: rewards, files, metrics."""
    parameters: float = 0.0
    """Number of the model's weights, or 0 if unknown."""


def fit_costs(runs: Sequence[Recorded]) -> Costs:
    """The costs of runs with the same model on the same machine.

    Raises:
        UsageError: no run is synchronous, so that it is unknown what the samplers did when.
    """
    synchronous = [run for run in runs if run.staleness == 0]
    if not synchronous:
        raise UsageError(
            f"run={runs[0].name} was played ahead of the learner (staleness="
            f"{runs[0].staleness}), so the costs of sampling cannot be separated: give a run with "
            "staleness=0, and plan with staleness=1"
        )
    step_s, row_s, prefill_s = _sampling(synchronous)
    fixed, token = _learning(runs)
    steps = [step for run in runs for step in run.steps]
    episodes = sum(len(group) for step in steps for group in step.groups)
    return Costs(
        step_s=step_s,
        row_s=row_s,
        prefill_s=prefill_s,
        learn_fixed_s=fixed,
        learn_token_s=token,
        sync_s=float(np.median([step.sync_s for step in steps])),
        episode_s=sum(step.other_s for step in steps) / max(1, episodes),
        parameters=float(max(run.num_parameters for run in runs)),
    )


def _sampling(runs: Sequence[Recorded]) -> tuple[float, float, float]:
    """Seconds of a decoding step, of a row, and of a prompt token."""
    tokens = sum(step.sampled for run in runs for step in run.steps)
    seconds = sum(step.generate_s for run in runs for step in run.steps)
    costs = (0.0, seconds / max(1, tokens), 0.0)
    for _ in range(_ROUNDS):
        counts, measured = [], []
        for run in runs:
            samplers = Samplers(*costs, run.slots, run.samplers)
            for step in run.steps:
                made, whole = requests(step.groups, samplers)
                counts += [[one.steps, one.rows, one.prefill] for one in made]
                measured += [one.recorded_s for one in made]
                # The step itself weighs as much as its requests, which share its seconds.
                weight = math.sqrt(max(1, len(made)))
                counts.append([weight * n for n in (whole.steps, whole.rows, whole.prefill)])
                measured.append(weight * step.generate_s)
        fitted = least_squares(np.array(counts), np.array(measured))
        costs = (float(fitted[0]), float(fitted[1]), float(fitted[2]))
    return costs


def _learning(runs: Sequence[Recorded]) -> tuple[float, float]:
    """Seconds of an update, and of each token in it."""
    steps = [step for run in runs for step in run.steps if step.learned_tokens > 0]
    tokens = np.array([step.learned_tokens for step in steps])
    seconds = np.array([step.learn_s for step in steps])
    if not len(steps):
        return 0.0, 0.0
    if tokens.max() < _APART * tokens.min():
        return 0.0, float(np.median(seconds / tokens))
    fixed, token = least_squares(np.stack([np.ones_like(tokens), tokens], axis=1), seconds)
    return float(fixed), float(token)


def least_squares(counts: Floats, seconds: Floats) -> Floats:
    """The costs, all at least 0, that explain ``seconds`` best.

    Every set of costs that may be above 0 is tried, because there are few costs.
    """
    num = counts.shape[1]
    best, least = np.zeros(num), float(seconds @ seconds)
    for chosen in range(1, 2**num):
        columns = [i for i in range(num) if chosen >> i & 1]
        solved, *_ = np.linalg.lstsq(counts[:, columns], seconds, rcond=None)
        if (solved < 0).any():
            continue
        rest = seconds - counts[:, columns] @ solved
        if float(rest @ rest) < least * (1 - 1e-12):
            best, least = np.zeros(num), float(rest @ rest)
            best[columns] = solved
    return best


def scaled(costs: Costs, samplers: float) -> Costs:
    """The costs on samplers that are ``samplers`` times as fast."""
    return replace(
        costs,
        step_s=costs.step_s / samplers,
        row_s=costs.row_s / samplers,
        prefill_s=costs.prefill_s / samplers,
    )

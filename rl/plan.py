"""``python -m rl.plan runs/search gpus=8,64,1024``: a step's seconds on other machines.

The command fits a model of a step's time to the run's ledger and episodes, and prints, for each
number of GPUs, the seconds of each part, the part that bounds the step, and what to change. With
``model=4B gpu=h100`` the speeds of the GPUs are assumptions instead of the run's; the episodes, the
environments and the controller stay as measured. docs/scaling.md describes the model.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rl.files import write_stdout
from rl.run.process.command import run_command
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python

if TYPE_CHECKING:
    from rl.planning.costs import Costs
    from rl.planning.placement import Placement
    from rl.planning.recorded import Recorded
    from rl.planning.step_time import Setup, Work

_COLUMNS = ("generate", "environment", "controller", "learn", "sync")


@from_python
@dataclass(frozen=True, kw_only=True)
class StepPlanConfig:
    """Predict the seconds of a run's step on a number of GPUs."""

    run: str
    """The run's folder, or several folders of one model and machine, separated by commas. The
    episodes are those of the first. "run=" may be omitted."""
    gpus: tuple[int, ...] = (8, 64, 1024)
    """Numbers of GPUs."""
    model: str = ""
    """Size of a Qwen3 model, as in 4B, whose speed is assumed. Empty: the speeds of the run."""
    gpu: str = "h100"
    """The GPU whose speeds are assumed: a100, h100 or h200. Without model=, only its network is."""
    staleness: int = -1
    """Maximum age of episodes, in updates; -1: as in the run."""
    prompts: int = 0
    """Number of tasks per step; 0: as in the run."""
    grow: bool = False
    """Whether tasks per step grow with the GPUs, from prompts at the smallest number of GPUs."""
    longer: float = 1.0
    """Number of tokens of an observation or answer, as a multiple of the run's."""
    environment_s: float = 0.0
    """Seconds to add to each answer of an environment, as of a slow tool."""
    slots: int = 0
    """Maximum number of sequences that a sampler decodes at the same time; 0: as in the run."""
    micro_batch_tokens: int = 0
    """Tokens of a forward pass of a learner's rank; 0: as in the run, but at least 16384 with
    model=."""
    learner_gpus: int = 0
    """GPUs of the learner, with staleness; 0: the number with the fastest step."""
    collectors: int = 1
    """Number of processes that play episodes."""
    environments: int = 0
    """Maximum number of environments that answer at the same time; 0: no maximum. With grow, the
    number at the smallest number of GPUs."""
    json: bool = False
    """Print one line of JSON. "--json" does the same."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        at_least(0, self, "prompts", "slots", "micro_batch_tokens", "learner_gpus", "environments")
        at_least(0, self, "environment_s")
        at_least(-1, self, "staleness")
        at_least(1, self, "collectors")
        if not self.gpus or min(self.gpus) < 1:
            raise ValueError(f"gpus ({self.gpus}) must be one or more numbers >= 1")
        if not 0 < self.longer <= 1e6:
            raise ValueError(f"longer ({self.longer}) must be above 0 and at most 1e6")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.plan", StepPlanConfig, {}, _run, argv)


def _run(config: StepPlanConfig) -> int:
    # These load numpy and the readers of episodes; `--help` does not wait for them.
    from rl.planning.costs import fit_costs
    from rl.planning.recorded import read_recorded
    from rl.planning.step_time import work_of

    runs = [read_recorded(folder) for folder in config.run.split(",")]
    measured = fit_costs(runs)
    work = work_of(runs[0]).changed(config.longer, config.environment_s)
    costs, placements = _placements(config, runs[0], work, measured)
    check = _check(runs[0], measured)
    if config.json:
        write_stdout(json.dumps(_as_json(costs, placements, check)) + "\n")
    else:
        write_stdout("\n".join(_lines(config, runs[0], costs, placements, check)) + "\n")
    return 0


def _placements(
    config: StepPlanConfig, recorded: Recorded, work: Work, measured: Costs
) -> tuple[Costs, list[Placement]]:
    """The costs with which the plan computes, and a placement for each number of GPUs."""
    from rl.planning.gpus import assumed_costs, find_gpu, find_model, least_learners, least_tensor
    from rl.planning.placement import Cluster, place

    gpu = find_gpu(config.gpu)
    tensor = least = 1
    costs = measured
    if config.model:
        model = find_model(config.model)
        tensor, least = least_tensor(gpu, model), least_learners(gpu, model)
        costs = assumed_costs(measured, gpu, model, work.context, tensor)
    setup = _setup(config, recorded)
    placements = []
    for gpus in config.gpus:
        factor = gpus / min(config.gpus) if config.grow else 1
        grown = replace(
            setup,
            prompts=math.ceil(setup.prompts * factor),
            environments=setup.environments * factor,
        )
        cluster = Cluster(gpus, gpu, tensor, least, config.learner_gpus)
        placements.append(place(work, costs, grown, cluster))
    return costs, placements


def _setup(config: StepPlanConfig, recorded: Recorded) -> Setup:
    from rl.planning.step_time import Setup

    tokens = config.micro_batch_tokens or recorded.micro_batch_tokens
    if config.model and not config.micro_batch_tokens:
        tokens = max(tokens, 16384)
    return Setup(
        samplers=1,
        ranks=1,
        prompts=config.prompts or recorded.prompts,
        staleness=recorded.staleness if config.staleness < 0 else config.staleness,
        slots=config.slots or recorded.slots,
        micro_batch_tokens=tokens,
        environments=config.environments or math.inf,
        collectors=config.collectors,
    )


def _check(recorded: Recorded, costs: Costs) -> dict[str, float]:
    """The run's own step as the model predicts it, and as it was measured."""
    from statistics import median

    from rl.planning.step_time import Setup, predict, work_of

    own = Setup(
        *(recorded.samplers, 1, recorded.prompts, recorded.staleness, recorded.slots),
        micro_batch_tokens=recorded.micro_batch_tokens,
    )
    predicted = predict(work_of(recorded), costs, own).step_s
    measured = median(step.wall_s for step in recorded.steps)
    return {"measured_s": measured, "predicted_s": predicted, "error": predicted / measured - 1}


def _as_json(
    costs: Costs, placements: Sequence[Placement], check: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "fit": dict(check),
        "costs": asdict(costs),
        "plans": [_record(one) for one in placements],
    }


def _record(one: Placement) -> dict[str, Any]:
    from rl.planning.placement import advice

    setup, time = one.setup, one.time
    return {
        "gpus": one.cluster.gpus,
        "samplers": setup.samplers,
        "gpus_per_sampler": one.cluster.tensor,
        "learner_gpus": setup.ranks,
        "takes_turns": one.shares,
        "prompts": setup.prompts,
        "staleness": setup.staleness,
        "step_s": time.step_s,
        "parts_s": time.parts,
        "learner_waits_s": time.wait_s,
        "tail_s": time.tail_s,
        "tokens_per_second_per_gpu": one.tokens_per_gpu,
        "environments": one.environments,
        "rows": time.rows,
        "bottleneck": time.bottleneck,
        "advice": advice(one),
    }


def _lines(
    config: StepPlanConfig,
    recorded: Recorded,
    costs: Costs,
    placements: Sequence[Placement],
    check: Mapping[str, float],
) -> list[str]:
    """The plan for people."""
    from rl.planning.placement import advice

    lines = [
        f"{recorded.name}: {check['measured_s']:.3g} s a step measured, {check['predicted_s']:.3g} "
        f"s by the model ({check['error']:+.0%})",
        _speeds(config, recorded, costs),
        "",
    ]
    head = ["GPUs", "samplers", "learner", "tasks", "step s", *_COLUMNS, "tokens/s/GPU"]
    rows = [head, *(_row(one) for one in placements)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells))
    lines.append("")
    for one in placements:
        lines.append(f"{one.cluster.gpus} GPUs: {one.time.bottleneck}. {advice(one)}")
    return lines


def _speeds(config: StepPlanConfig, recorded: Recorded, costs: Costs) -> str:
    if config.model:
        return (
            f"prediction for Qwen3-{config.model} on {config.gpu}: speeds are assumed "
            "(docs/scaling.md), episodes, environments and the controller are the run's"
        )
    return (
        f"prediction: each GPU is as fast as the run's {recorded.device} (model=4B gpu=h100 "
        f"assumes others); a decoding step takes {1e3 * costs.step_s:.3g} ms and "
        f"{1e3 * costs.row_s:.3g} ms a row, a learner's token {1e6 * costs.learn_token_s:.3g} us"
    )


def _row(one: Placement) -> list[str]:
    setup, time, tensor = one.setup, one.time, one.cluster.tensor
    samplers = f"{setup.samplers}x{tensor}" if tensor > 1 else str(setup.samplers)
    learner = "the same" if one.shares else str(setup.ranks)
    parts = [f"{time.parts[name]:.3g}" for name in _COLUMNS]
    return [
        *(str(one.cluster.gpus), samplers, learner, str(setup.prompts), f"{time.step_s:.3g}"),
        *(*parts, f"{one.tokens_per_gpu:.4g}"),
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Host synchronisations during the micro-batches of an update."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from benchmarks.gpu.correctness import Variant, make_updater
from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.workloads import SHAPES, make_group, make_model
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import TrajectoryGroup

CALLED = "synchronizing CUDA operation"
"""Part of the warning and of the error with which torch reports a synchronisation."""
CASES = {
    "grpo": ("grpo", 0),
    "gspo": ("gspo", 0),
    "ppo": ("ppo", 0),
    "grpo, top-k 20": ("grpo", 20),
}
"""Algorithm, and size of the sampling support."""
SHOWN = 3


def run(setup: Setup, report: Report) -> None:
    for name, (algo, supports) in CASES.items():
        with report.guard(f"{name}: synchronisations"):
            _case(name, algo, supports, setup, report)


def _case(name: str, algo: str, supports: int, setup: Setup, report: Report) -> None:
    size = "tiny" if setup.small else "small"
    dtype = torch.float32 if setup.small else torch.bfloat16
    completions = (9, 14, 11, 6) if setup.small else (200, 320, 260, 120)
    groups = [
        make_group(12, completions, SHAPES[size][6], seed, supports)
        for seed in range(2 if setup.small else 4)
    ]
    variant = Variant(dtype=dtype, max_tokens=sum(completions))
    updater = make_updater(make_model(size, setup, dtype), variant, OptimizerConfig(), algo)
    updater.update(groups)  # The first update compiles kernels and makes the moments.
    micro_batches, places = _counted(updater, groups, setup)
    if micro_batches < 2:
        raise RuntimeError(f"{micro_batches} micro-batches were watched: at least 2 are needed")
    report(f"{name}: micro-batches watched", micro_batches)
    if not setup.on_gpu:
        report.skip(f"{name}: synchronisations", "only a GPU has any")
        return
    worst = ", ".join(f"{count}x {place}" for place, count in places.most_common(SHOWN))
    report(
        f"{name}: synchronisations in {micro_batches} micro-batches",
        places.total(),
        at_most=0,
        note=worst,
    )
    with report.guard(f"{name}: set_sync_debug_mode('error')"):
        with watched(
            updater, lambda: _set_mode(setup, "error"), lambda: _set_mode(setup, "default")
        ):
            updater.update(groups)
        report(f"{name}: set_sync_debug_mode('error') holds", 1, at_least=1)


def _counted(
    updater: Updater, groups: list[TrajectoryGroup], setup: Setup
) -> tuple[int, Counter[str]]:
    """Number of micro-batches of an update, and of synchronisations during them, by place."""
    begun = 0

    def begin() -> None:
        nonlocal begun
        begun += 1
        _set_mode(setup, "warn")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with watched(updater, begin, lambda: _set_mode(setup, "default")):
            updater.update(groups)
    home = Path(__file__).resolve().parents[2]
    places: Counter[str] = Counter()
    for warning in caught:
        if CALLED in str(warning.message):
            file = Path(warning.filename)
            inside = file.relative_to(home) if file.is_relative_to(home) else Path(file.name)
            places[f"{inside}:{warning.lineno}"] += 1
    return begun, places


@contextmanager
def watched(updater: Updater, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call ``begin`` before each backward pass of an update, and ``end`` before a step clips.

    All of a step between its first backward pass and clipping is so watched, whole micro-batches
    from the second on. Clipping has to wait for the device.
    """
    backward, clip = updater.optimizer.backward, updater.optimizer.clip_gradients

    def on_backward(loss: torch.Tensor) -> None:
        begin()
        backward(loss)

    def on_clip() -> torch.Tensor:
        end()
        return clip()

    hooks = {"backward": on_backward, "clip_gradients": on_clip}
    try:
        with mock.patch.multiple(updater.optimizer, **hooks):
            yield
    finally:
        end()


def _set_mode(setup: Setup, mode: str) -> None:
    if setup.on_gpu:
        torch.cuda.set_sync_debug_mode(mode)

"""The learner's numbers on the device against the same numbers on the CPU."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.workloads import SHAPES, make_group, make_model
from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.learner.updater import Updater
from rl.packing import attention
from rl.rollout.trajectory import TrajectoryGroup
from rl.runtime.deterministic import deterministic_kernels
from rl.settings.train import TrainConfig

WHOLE_GRADIENT = OptimizerConfig(lr=1e-6, betas=(0.0, 0.95), max_grad_norm=1e9)
"""With a decay of 0 and no clipping, AdamW's average after one step is the step's gradient."""
GRADIENT, LOGPROB, LOSS = 1e-4, 5e-5, 1e-5
"""Largest errors in float32: of a gradient, relative; of log-probabilities in nats; of the loss."""
MARGIN = 2.0
"""In bfloat16 an error may be this many times the CPU's own error in bfloat16."""
ERRORS = ("loss", "log-probabilities", "gradient, relative")
"""What is compared, in the order of :func:`_errors`."""
EIGHT_BITS, STEPS = 0.1, 5
"""Largest difference of 8-bit averages' weights, relative to how far the weights moved."""


@dataclass(frozen=True)
class Variant:
    """A way to compute the same update."""

    dtype: torch.dtype = torch.float32
    packing: bool = True
    checkpointing: str = "on"
    head_mib: int = 0
    max_tokens: int = 2048

    @property
    def memory(self) -> MemoryConfig:
        """The settings of the learner's memory."""
        return MemoryConfig(activation_checkpointing=self.checkpointing, head_mib=self.head_mib)


@dataclass(frozen=True)
class Measured:
    """What one update computed, on the CPU in float64."""

    loss: float
    logprobs: Tensor
    gradient: Tensor


PLAIN = Variant(packing=False, checkpointing="off")
VARIANTS: Mapping[str, Variant] = {
    "padded rows": PLAIN,
    "packed rows, shared prefixes": replace(PLAIN, packing=True),
    "checkpointing on": replace(PLAIN, checkpointing="on"),
    "checkpointing offload": replace(PLAIN, checkpointing="offload"),
    "head in chunks": replace(PLAIN, head_mib=1),
    "many micro-batches": replace(PLAIN, packing=True, max_tokens=256),
    "the default": Variant(),
}


def run(setup: Setup, report: Report) -> None:
    groups = make_groups(setup)
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        _compare(dtype, name, groups, setup, report)
    in_use = attention._variable_length
    report(
        "bf16: packed rows use variable-length attention",
        int(in_use) if setup.on_gpu else None,
        at_least=1,
        note="" if setup.on_gpu else "only on a GPU",
    )
    with report.guard("8-bit optimizer"):
        _eight_bits(groups, setup, report)


def make_groups(setup: Setup) -> list[TrajectoryGroup]:
    """Two groups of four ragged episodes, each with a prompt of its own."""
    vocabulary = SHAPES[_size(setup)][6]
    lengths = (5, 16, 9, 21) if setup.small else (24, 160, 77, 131)
    prompt = 12 if setup.small else 200
    return [make_group(prompt, lengths, vocabulary, seed) for seed in (0, 1)]


def _size(setup: Setup) -> str:
    return "tiny" if setup.small else "small"


def _compare(
    dtype: torch.dtype, name: str, groups: list[TrajectoryGroup], setup: Setup, report: Report
) -> None:
    """All variants in one type, against the CPU's float32 with the same weights."""
    at = replace(setup, device="cpu")
    model = make_model(_size(setup), at, dtype)
    expected = measure(copy.deepcopy(model).float(), PLAIN, groups, "cpu")
    limits = (LOSS, LOGPROB, GRADIENT)
    if dtype != torch.float32:
        theirs = measure(copy.deepcopy(model), replace(PLAIN, dtype=dtype), groups, "cpu")
        errors = _errors(theirs, expected)
        limits = tuple(MARGIN * max(e, limit) for e, limit in zip(errors, limits, strict=True))
        report(f"{name} on the CPU: {ERRORS[2]}", errors[2], note="sets the goals")
    in_small = ("padded rows", "the default") if dtype == torch.bfloat16 else tuple(VARIANTS)
    for kind in in_small if setup.small else VARIANTS:
        variant = VARIANTS[kind]
        with report.guard(f"{name}, {kind}"):
            found = measure(
                copy.deepcopy(model), replace(variant, dtype=dtype), groups, setup.device
            )
            errors = _errors(found, expected)
        for what, error, limit in zip(ERRORS, errors, limits, strict=True):
            report(f"{name}, {kind}: {what}", error, at_most=limit)


def measure(
    model: PreTrainedModel, variant: Variant, groups: list[TrajectoryGroup], device: str
) -> Measured:
    """One update of ``model``, which changes."""
    updater = make_updater(model.to(device), variant, WHOLE_GRADIENT)
    scored, _ = updater.model.score_batch(Batch.from_groups(groups), variant.max_tokens)
    loss = updater.update(groups)["loss"]
    states = updater.optimizer.state_dict()["adamw"]["state"]
    averages = [states[i]["exp_avg"].double().cpu().flatten() for i in sorted(states)]
    return Measured(loss, scored, torch.cat(averages))


def make_updater(
    model: PreTrainedModel, variant: Variant, optimizer: OptimizerConfig, algo: str = "grpo"
) -> Updater:
    """An updater of ``model`` in place. Rows are packed if and only if the variant packs.

    Raises:
        RuntimeError: the model's rows would be padded in spite of ``packing``.
    """
    updater = Updater(
        model,
        ALGORITHMS[algo],
        optimizer,
        max_tokens_per_micro_batch=variant.max_tokens,
        packing=variant.packing,
        memory=variant.memory,
    )
    if updater.model.packs != variant.packing:
        raise RuntimeError("the learner pads rows of this model: the log says why")
    return updater


def _errors(found: Measured, expected: Measured) -> tuple[float, float, float]:
    """Differences of the loss and of log-probabilities, and the gradient's relative error."""
    apart = (found.gradient - expected.gradient).norm() / expected.gradient.norm()
    off = (found.logprobs - expected.logprobs).abs().max()
    return abs(found.loss - expected.loss), float(off), float(apart)


def _eight_bits(groups: list[TrajectoryGroup], setup: Setup, report: Report) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        report.skip("8-bit optimizer", "bitsandbytes is not installed: turnwise[quantized]")
        return
    model = make_model(_size(setup), replace(setup, device="cpu"), torch.float32)
    moved = {}
    for bits in (32, 8):
        trained = copy.deepcopy(model)
        config = OptimizerConfig(lr=1e-3, state_bits=bits)
        updater = make_updater(trained.to(setup.device), Variant(), config)
        for _ in range(STEPS):
            updater.update(groups)
        moved[bits] = flat(trained) - flat(model)
    apart = (moved[8] - moved[32]).norm() / moved[32].norm()
    report(
        f"8-bit optimizer: {STEPS} steps, difference from 32 bits",
        float(apart),
        "of the way",
        at_most=EIGHT_BITS,
    )


def flat(model: PreTrainedModel) -> Tensor:
    """All weights as one vector on the CPU."""
    return torch.cat([p.detach().float().cpu().flatten() for p in model.parameters()])


def deterministic(setup: Setup, report: Report) -> None:
    """Two updates with ``deterministic=true``, in a process that has not used CUDA before."""
    config = TrainConfig(env="math", deterministic=True, device=setup.device)
    cases = {
        "fp32, padded rows": PLAIN,
        "fp32, the default": Variant(),
        "bf16, padded rows": replace(PLAIN, dtype=torch.bfloat16),
        "bf16, the default": Variant(dtype=torch.bfloat16),
    }
    with deterministic_kernels(config):
        for name, variant in cases.items():
            with report.guard(f"{name}: weights that differ"):
                different = _repeated(variant, setup)
                report(f"{name}: weights that differ between two runs", different, "", at_most=0)


def _repeated(variant: Variant, setup: Setup) -> int:
    """Number of weights that differ after two equal updates."""
    groups = make_groups(setup)
    model = make_model(_size(setup), replace(setup, device="cpu"), variant.dtype)
    ends = []
    for _ in range(2):
        trained = copy.deepcopy(model).to(setup.device)
        updater = make_updater(trained, variant, OptimizerConfig(lr=1e-3))
        for _ in range(2):
            updater.update(groups)
        ends.append(flat(trained))
    return int((ends[0] != ends[1]).sum())

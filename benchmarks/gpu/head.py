"""The output head: forward and backward pass over the tokens of a long row."""

from __future__ import annotations

import torch

from benchmarks.gpu.device import peak_flops
from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.timing import Memory, gib, seconds_of
from benchmarks.gpu.workloads import SHAPES
from rl.credit.logprobs import token_head
from rl.learner.settings import DEFAULT_MEMORY

ROW, GOAL_MS = 16384, 60.0


def run(setup: Setup, report: Report) -> None:
    for size in ("tiny",) if setup.small else ("0.6B", "4B"):
        with report.guard(f"{size}: head"):
            _measure(size, setup, report)


def _measure(size: str, setup: Setup, report: Report) -> None:
    count, width, vocabulary = (64 if setup.small else ROW), SHAPES[size][0], SHAPES[size][6]
    dtype = torch.float32 if setup.small else torch.bfloat16
    device = torch.device(setup.device)
    drawn = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(count, width, device=device, generator=drawn).to(dtype)
    weight = torch.randn(vocabulary, width, device=device, generator=drawn).mul(0.02).to(dtype)
    targets = torch.randint(vocabulary, (count,), device=device, generator=drawn)
    gradient = torch.randn(count, device=device, generator=drawn)
    hidden.requires_grad_(), weight.requires_grad_()

    def both_passes() -> None:
        hidden.grad = weight.grad = None
        logprobs, _ = token_head(
            hidden, weight, None, targets, 1.0, None, DEFAULT_MEMORY.head_bytes(device.type)
        )
        logprobs.backward(gradient)

    memory = Memory(setup)
    memory.restart()
    before = memory.allocated()
    seconds = seconds_of(both_passes, setup)
    peak = memory.peak()
    goal = GOAL_MS if size == "0.6B" else None
    report(f"{size}: head of {count} tokens", 1e3 * seconds, "ms", at_most=goal)
    # Logits, and two products with their gradient; logits computed again do not count.
    flops = 3 * 2 * count * width * vocabulary / seconds
    rate = peak_flops(setup)
    report(
        f"{size}: head, share of the device's rate",
        None if rate is None else flops / rate,
        note="" if rate else "the device's rate is not known",
    )
    over = None if peak is None or before is None else peak - before
    report(f"{size}: head's memory", gib(over), "GiB", note="with its two gradients")

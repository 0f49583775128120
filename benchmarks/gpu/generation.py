"""``policy=local`` on the device: speed by the number of rows, and its log-probabilities."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import torch
from transformers import AutoTokenizer

from agents.completion import Completion, SamplingParams
from agents.local import LocalPolicy
from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.timing import synchronize
from benchmarks.gpu.workloads import SHAPES, make_model, model_folder
from rl.learner.model import score_tokens, tolerance_of

ROWS = (1, 8, 64)


def run(setup: Setup, report: Report) -> None:
    asyncio.run(_run(setup, report))


async def _run(setup: Setup, report: Report) -> None:
    size = "tiny" if setup.small else "0.6B"
    model = make_model(size, setup, torch.float32 if setup.small else torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("0.6B", setup))
    prompt, new = (16, 8) if setup.small else (256, 128)
    policy = LocalPolicy(model, tokenizer, max_slots=max(ROWS))
    drawn = np.random.default_rng(0)
    try:
        for rows in ROWS[:2] if setup.small else ROWS:
            with report.guard(f"0.6B, {rows} rows"):
                prompts = drawn.integers(0, SHAPES[size][6], (rows, prompt)).tolist()
                await _generate(policy, prompts, 4)  # compiles kernels
                synchronize(setup)
                start = time.perf_counter()
                done = await _generate(policy, prompts, new)
                synchronize(setup)
                rate = rows * new / (time.perf_counter() - start)
                report(f"0.6B, {rows} rows, prompts of {prompt}", rate, "tokens/s")
    finally:
        await policy.close()
    with report.guard("sampler and learner"):
        context = [*prompts[0], *done[0].token_ids]
        scored = score_tokens(model, context, 1.0)[-new:]
        off = max(abs(a - b) for a, b in zip(scored, done[0].logprobs, strict=True))
        report("sampler and learner: log-probabilities", off, "nats", at_most=tolerance_of(model))


async def _generate(policy: LocalPolicy, prompts: list[list[int]], new: int) -> list[Completion]:
    params = SamplingParams(max_tokens=new, seed=0)
    return await asyncio.gather(*(policy.generate(prompt, params) for prompt in prompts))

"""Speed-up by a second thread in the local policy and in the learner, which share one torch thread.

    GOMP_SPINCOUNT=5000 python -m benchmarks.speed.threads [repeats] [results.json]

The models are the Qwen3 of ``benchmarks.speed.generation`` with 0.8M parameters, which the policy
always runs with one thread, and one with 14.6M. Each samples 128 tokens at temperature 1 after
prompts of 32, for 64 and for 128 rows, and then learns from these samples as a training step does.
One and two threads alternate, so that a busy machine slows both. Commands set ``GOMP_SPINCOUNT``
themselves. Prints one line of JSON, and writes it to the file: seconds (median and best) of both
parts with one and two threads, the ratios, and the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.local import Limits, LocalPolicy, TorchThread
from agents.segment import Segment
from benchmarks.speed.generation import make_model, make_tokenizer
from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.run.folder import versions

PROMPT, NEW = 32, 128
ROWS = (64, 128)


async def generate(policy: LocalPolicy, rows: int) -> list[Segment]:
    """Sample ``rows`` completions; as texts to learn from."""
    prompts = [[(7 * row + i) % 256 for i in range(PROMPT)] for row in range(rows)]
    completions = await asyncio.gather(
        *(policy.generate(prompt, SamplingParams(max_tokens=NEW)) for prompt in prompts)
    )
    return [
        Segment(
            token_ids=[*prompt, *completion.token_ids],
            loss_mask=[0] * PROMPT + [1] * NEW,
            sampling_logprobs=[0.0] * PROMPT + list(completion.logprobs),
            versions=[-1] * PROMPT + [0] * NEW,
            turn_ids=[0] * (PROMPT + NEW),
        )
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def make_larger_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = make_model().config
    config.update({"hidden_size": 384, "intermediate_size": 1152, "num_attention_heads": 6})
    config.update({"head_dim": 64, "num_hidden_layers": 8, "layer_types": ["full_attention"] * 8})
    return Qwen3ForCausalLM(config).eval()


MODELS = {"0.8M": make_model, "14.6M": make_larger_model}


async def measure(name: str, rows: int, repeats: int) -> dict[str, float]:
    thread = TorchThread(1)
    model = MODELS[name]()
    policy = LocalPolicy(model, make_tokenizer(), max_slots=rows, limits=Limits(thread=thread))
    # A rate of 0: every round has the same work.
    learner = Updater(model, ALGORITHMS["grpo"], OptimizerConfig(lr=0.0))
    seconds: dict[str, list[float]] = {}
    for round_ in range(repeats + 1):
        for threads in (1, 2):
            thread.num_threads = threads
            start = time.perf_counter()
            segments = await generate(policy, rows)
            between = time.perf_counter()
            await thread.do(learner.supervised_update, segments)
            end = time.perf_counter()
            # Each round starts from nothing, as after an update of the weights.
            await policy.load_weights(None, round_)
            if round_:  # the first one warms up
                seconds.setdefault(f"generation_{threads}", []).append(between - start)
                seconds.setdefault(f"learning_{threads}", []).append(end - between)
    await policy.close()
    await thread.close()
    result = {f"{name}_median_s": statistics.median(values) for name, values in seconds.items()}
    result |= {f"{name}_best_s": min(values) for name, values in seconds.items()}
    for part in ("generation", "learning"):
        for kind in ("median", "best"):
            one, two = (result[f"{part}_{threads}_{kind}_s"] for threads in (1, 2))
            result[f"{part}_gain_of_{kind}s"] = one / two
    return {name: round(value, 3) for name, value in result.items()}


async def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)
    begun = os.getloadavg()
    result: dict[str, object] = {
        f"{name}_rows_{rows}": await measure(name, rows, repeats)
        for name in MODELS
        for rows in ROWS
    }
    result |= {
        "repeats": repeats,
        "new_tokens": NEW,
        "load_average": [begun, os.getloadavg()],
        "cores": len(os.sched_getaffinity(0)),
        **versions(),
    }
    text = json.dumps(result)
    print(text)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())

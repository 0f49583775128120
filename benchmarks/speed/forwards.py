"""Tokens per CPU second of the forward passes of ``agents.local``, in one torch thread.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.forwards [repeats] [name]

The name is a family, the folder of a model, or ``admission``; without a name, all but the folder
run. Families have about a million parameters and random weights. 1, 8 and 32 rows have prompts of
24 to 40 tokens and 32 new tokens each at temperature 1. The forward passes alternate: ``thin``
(Llama, Mistral, Qwen2, Qwen3), ``batched`` (transformers' own forward pass in batches) and
``transformers`` (one row at a time).

``admission`` plays the multi-turn episodes of :mod:`benchmarks.speed.generation` with ``batched``:
continuously, and in waves (``deterministic=True``).

CPU seconds exclude the time in which a busy machine runs other processes. Prints a line of JSON for
each name: median tokens per CPU second, their ratios, and the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agents.completion import SamplingParams
from agents.local import LocalPolicy
from agents.local.engine import Engine
from agents.local.forward import (
    BatchedForward,
    Forward,
    ThinForward,
    TransformersForward,
    thin_obstacle,
)
from agents.local.request import Request
from agents.local.slots import CacheLimits
from agents.local.stops import StopStringTable
from benchmarks.speed.generation import engine, make_model, make_tokenizer, make_work

ROWS = (1, 8, 32)
NEW_TOKENS = 32
SHAPE: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def gemma3() -> Any:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = Gemma3TextConfig(**SHAPE, sliding_window=64, layer_types=kinds)
    return Gemma3ForCausalLM(config).eval()


def qwen3_moe() -> Any:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **experts)).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": make_model,
    "gemma3": gemma3,
    "qwen3_moe": qwen3_moe,
}


def seconds(model: Any, make: Callable[[Any], Forward], rows: int) -> float:
    """CPU seconds of one batch from an empty cache to the last token."""
    rng = np.random.default_rng(rows)
    runner = Engine(
        model,
        make(model),
        StopStringTable(make_tokenizer(), 0),
        cache=CacheLimits(rows),
        context_window=512,
        prefill_tokens=1024,
        seed=0,
    )
    for seed in range(rows):
        prompt = rng.integers(0, 256, rng.integers(24, 41)).tolist()
        params = SamplingParams(max_tokens=NEW_TOKENS, seed=seed)
        runner.submit(Request(prompt, params))
    start = time.thread_time()
    with torch.inference_mode():
        while runner.busy:
            runner.step()
    return time.thread_time() - start


def compare(model: Any, repeats: int) -> dict[str, object]:
    """Median tokens per CPU second of every forward pass, by the number of rows."""
    makes: dict[str, Callable[[Any], Forward]] = {
        "batched": BatchedForward,
        "transformers": TransformersForward,
    }
    if thin_obstacle(model, 512) is None:
        makes["thin"] = ThinForward
    found: dict[str, object] = {}
    for rows in ROWS:
        taken: dict[str, list[float]] = {name: [] for name in makes}
        for round_ in range(repeats + 1):
            for name, make in makes.items():
                used = seconds(model, make, rows)
                if round_:  # the first one warms up
                    taken[name].append(used)
        tokens = {name: rows * NEW_TOKENS / statistics.median(s) for name, s in taken.items()}
        batched = tokens["batched"]
        ratios = {f"batched / {n}": round(batched / t, 2) for n, t in tokens.items()}
        del ratios["batched / batched"]
        found[f"{rows} rows"] = {name: round(t) for name, t in tokens.items()} | ratios
    return found


async def admission(repeats: int) -> dict[str, float]:
    """Tokens per CPU second of multi-turn episodes, admitted continuously and in waves."""
    episodes = make_work("multi_turn")
    num_tokens = sum(sum(episode.turns) for episode in episodes)
    tokenizer = make_tokenizer()
    policies = {
        name: LocalPolicy(gemma3(), tokenizer, max_slots=32, deterministic=name == "waves")
        for name in ("continuous", "waves")
    }
    taken: dict[str, list[float]] = {name: [] for name in policies}
    for round_ in range(repeats + 1):
        for name, policy in policies.items():
            start = time.process_time()
            await engine(policy, episodes, round_)
            if round_:
                taken[name].append(time.process_time() - start)
            await policy.load_weights(None, round_)
    for policy in policies.values():
        await policy.close()
    tokens = {name: num_tokens / statistics.median(used) for name, used in taken.items()}
    ratio = tokens["continuous"] / tokens["waves"]
    return {**{name: round(t) for name, t in tokens.items()}, "ratio": round(ratio, 2)}


def measure(name: str, repeats: int) -> dict[str, object]:
    """The comparison of this name."""
    if name == "admission":
        return {**asyncio.run(admission(repeats))}
    if name in MODELS:
        return compare(MODELS[name](), repeats)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return compare(model.eval(), repeats)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    for name in sys.argv[2:] or [*MODELS, "admission"]:
        found = {Path(name).name: measure(name, repeats), "repeats": repeats}
        print(json.dumps({**found, "torch": torch.__version__, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()

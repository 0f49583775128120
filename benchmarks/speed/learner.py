"""CPU seconds of the learner's update with packed rows, with padded rows, and of TRL's trainer.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.learner [repeats] [results.json] [workload ...]

Each workload is one GRPO update of a Qwen3 with 0.8M parameters on completions that are fixed:

- equal: 16 groups of 8, prompts of 64 tokens, completions of 128;
- ragged: the same with lognormal completions of 16 to 495 tokens;
- long: 2 groups of 8, prompts of 724 tokens, completions of 394.

Within a round, TRL makes one step, then our learner one update with padded and one with packed
rows, so that a busy machine slows all three. TRL runs once with 16 rows a micro-batch and once with
all of them; the better one counts. Its generation is left out. Prints one line of JSON for each
workload, and adds them to the file: median and best seconds, and TRL's and the padded update's
divided by the packed one's. Without TRL installed, only padded and packed rows are compared.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3ForCausalLM, TrainerCallback

from agents.completion import Completion, FinishReason
from benchmarks.speed.generation import make_model, make_tokenizer
from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.run.folder import versions

GROUP_SIZE, VOCABULARY = 8, 256
RATE = 1e-4
Work = tuple[list[list[int]], list[list[int]]]
"""Prompts and completions of every row."""


def make_work(groups: int, prompt: int, completion: int | None) -> Work:
    drawn = np.random.default_rng(0)
    prompts, completions = [], []
    for _ in range(groups):
        ids = drawn.integers(0, VOCABULARY, prompt).tolist()
        for _ in range(GROUP_SIZE):
            count = completion or int(np.clip(drawn.lognormal(4.5, 0.8), 16, 495))
            prompts.append(ids)
            completions.append(drawn.integers(0, VOCABULARY, count).tolist())
    return prompts, completions


WORKLOADS = {
    "equal": make_work(16, 64, 128),
    "ragged": make_work(16, 64, None),
    "long": make_work(2, 724, 394),
}


def make_groups(work: Work) -> list[TrajectoryGroup]:
    members = []
    for number, (prompt, ids) in enumerate(zip(*work, strict=True)):
        segment = Segment()
        segment.append_context(prompt, 0)
        count = len(ids)
        logprobs, versions_ = (-5.5,) * count, (0,) * count
        segment.append_completion(
            Completion(tuple(ids), logprobs, versions_, FinishReason.STOP_TOKEN), 0
        )
        turn = Turn("", "", "stop_token", count, {"r": reward(ids)})
        member = number % GROUP_SIZE
        members.append(Trajectory("none", {}, 0, 0, member, [segment], [turn], terminated=True))
    starts = range(0, len(members), GROUP_SIZE)
    return [TrajectoryGroup(members[i : i + GROUP_SIZE]) for i in starts]


def reward(ids: list[int]) -> float:
    return sum(i % 2 for i in ids) / len(ids)


class Rounds(TrainerCallback):
    """Runs our learner between the steps of TRL's, and keeps the seconds of all."""

    def __init__(self, updates: dict[str, Callable[[], object]]) -> None:
        self.updates = updates
        self.seconds: dict[str, list[float]] = {}

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """TRL's step begins."""
        self.start = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """TRL's step ends: now the others."""
        self.seconds.setdefault("trl", []).append(time.process_time() - self.start)
        self.update()

    def update(self) -> None:
        """One update of each of our learners."""
        for name, update in self.updates.items():
            start = time.process_time()
            update()
            self.seconds.setdefault(name, []).append(time.process_time() - start)


def make_updates(model: Qwen3ForCausalLM, work: Work) -> dict[str, Callable[[], object]]:
    groups, config = make_groups(work), OptimizerConfig(lr=RATE)
    learners = {
        name: Updater(copy.deepcopy(model), ALGORITHMS["grpo"], config, packing=packing)
        for name, packing in (("padded", False), ("packed", True))
    }
    return {
        name: lambda learner=learner: learner.update(groups) for name, learner in learners.items()
    }


def train_trl(model: Qwen3ForCausalLM, work: Work, micro: int, rounds: Rounds, steps: int) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts, completions = work
    count, longest = len(prompts), max(map(len, completions))
    tokenizer = make_tokenizer()
    tokenizer.eos_token = tokenizer.pad_token = "!"

    def rollout(texts: list[str], _: Any) -> dict[str, object]:
        assert len(texts) == count
        logprobs = [[-5.5] * len(ids) for ids in completions]
        return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": logprobs}

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=count // micro,
            num_generations=GROUP_SIZE,
            max_completion_length=longest,
            max_steps=steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            save_strategy="no",
            gradient_checkpointing=False,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=copy.deepcopy(model),
            processing_class=tokenizer,
            reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids],
            args=settings,
            train_dataset=Dataset.from_list(
                [{"prompt": f"{i}"} for i in range(count // GROUP_SIZE * steps)]
            ),
            rollout_func=rollout,
            callbacks=[rounds],
        )
        trainer.train()


def measure(work: Work, repeats: int) -> dict[str, object]:
    model = make_model()
    seconds: dict[str, list[float]] = {}
    rivals = sorted({16, len(work[0])}) if importlib.util.find_spec("trl") else []
    for micro in rivals or [0]:
        rounds = Rounds(make_updates(model, work))
        if micro:
            train_trl(model, work, micro, rounds, repeats + 1)
        else:
            for _ in range(repeats + 1):
                rounds.update()
        for name, values in rounds.seconds.items():
            key = f"trl_{micro}" if name == "trl" else name
            seconds.setdefault(key, []).extend(values[1:])  # the first one warms up
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    bests = {name: min(values) for name, values in seconds.items()}
    ratios = {}
    for kind, of_kind in (("medians", medians), ("bests", bests)):
        trl = [value for name, value in of_kind.items() if name.startswith("trl")]
        ratios[f"trl_{kind}"] = min(trl) / of_kind["packed"] if trl else None
        ratios[f"padded_{kind}"] = of_kind["padded"] / of_kind["packed"]
    return {
        "tokens": sum(map(len, work[0])) + sum(map(len, work[1])),
        "median_s": rounded(medians),
        "best_s": rounded(bests),
        "ratios": rounded(ratios, 2),
    }


def rounded(numbers: dict[str, Any], digits: int = 3) -> dict[str, Any]:
    return {name: None if x is None else round(x, digits) for name, x in numbers.items()}


def main() -> None:
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    results = json.loads(path.read_text()) if path is not None and path.exists() else {}
    for name in sys.argv[3:] or WORKLOADS:
        found = measure(WORKLOADS[name], repeats)
        load = round(os.getloadavg()[0], 1)
        results[name] = {**found, "repeats": repeats, "load": load, "versions": versions()}
        print(json.dumps({name: results[name]}), flush=True)
        if path is not None:
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

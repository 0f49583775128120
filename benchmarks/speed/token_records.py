"""Cost of recording each token's learner numbers and each tool call, as a share of an update.

    python -m benchmarks.speed.token_records [pairs] [results.json]

Updates of the model ``tiny`` on the same episodes alternate in pairs: one with the record and its
file, one without. The model has 0.3 million parameters, so that the share is larger than with any
model that people train; a whole step also plays episodes, which makes the share smaller. Prints one
line of JSON, and writes it to the file: the median over pairs of the ratio of CPU seconds, a 95%
interval by bootstrap, the seconds of the record and of the file, and bytes for each token.
``calls_s`` are the additional CPU seconds of a step's files with the duration, the retries and the
status of 1,024 tool calls, eight in each episode, and ``calls_share`` their share of an update.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from envs.episode import EnvToolCall
from rl.credit.algorithms import ALGORITHMS
from rl.learner.metrics import token_record
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.token_table import to_calls
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import (
    learner_path,
    tokens_path,
    write_learner_columns,
    write_trajectories,
)
from rl.run.folder import versions
from rl.settings.groups import TinyRecipe

GROUPS, GROUP, TURNS, CONTEXT, SAMPLED = 16, 8, 2, 64, 64
CALLS = 4
"""Tool calls of each turn, in the files of which the calls are measured."""
VOCABULARY = 512


def episodes() -> list[TrajectoryGroup]:
    """The episodes of one step."""
    drawn = np.random.default_rng(0)
    groups = []
    for task in range(GROUPS):
        members = []
        for member in range(GROUP):
            segment, record = Segment(), Trajectory("bench-v0", {}, task, 0, member)
            for turn in range(TURNS):
                words = drawn.integers(VOCABULARY, size=CONTEXT + SAMPLED).tolist()
                logprobs = tuple((-drawn.exponential(0.7, SAMPLED)).tolist())
                segment.append_context(words[:CONTEXT], turn)
                ids, ages = tuple(words[CONTEXT:]), (0,) * SAMPLED
                done = Completion(ids, logprobs, ages, FinishReason.STOP_TOKEN)
                segment.append_completion(done, turn)
                record.turns.append(Turn("", "", "stop_token", SAMPLED, {"x": float(member % 2)}))
            record.segments, record.terminated = [segment], True
            members.append(record)
        groups.append(TrajectoryGroup(members))
    return groups


def calls_cost(folder: Path, pairs: int) -> float:
    """The median of the additional CPU seconds of files with the measures of tool calls."""
    groups, path = episodes(), folder / "step-000002.jsonl.gz"
    call = EnvToolCall("search", {"query": "x"}, "Nothing was found.", None, 0.0, 0.01, 1, "200")
    for turn in (t for group in groups for one in group.trajectories for t in one.turns):
        turn.tool_calls = [replace(call, seconds=0.01 * n) for n in range(CALLS)]

    def seconds(kind: str) -> float:
        made = to_calls if kind == "with" else lambda trajectories: {}
        with patch("rl.rollout.trajectory_files.to_calls", made):
            began = time.process_time()
            write_trajectories(path, groups)
            return time.process_time() - began

    seconds("with")
    orders = [("with", "without") if n % 2 else ("without", "with") for n in range(pairs)]
    measured = [{kind: seconds(kind) for kind in order} for order in orders]
    return float(np.median([pair["with"] - pair["without"] for pair in measured]))


def learner() -> Updater:
    """A learner of a model of the size of ``tiny``."""
    recipe = TinyRecipe()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        head_dim=recipe.hidden_size // recipe.num_heads,
        max_position_embeddings=512,
    )
    return Updater(Qwen3ForCausalLM(config), ALGORITHMS["grpo"], OptimizerConfig(lr=1e-4))


def measure(pairs: int, folder: Path) -> dict[str, Any]:
    """Alternate updates with and without the record."""
    groups, updater, path = episodes(), learner(), folder / "step-000001.jsonl.gz"
    write_trajectories(path, groups)
    seconds: dict[str, list[float]] = {"with": [], "without": [], "record": [], "file": []}

    def timed_record(*args: Any) -> Any:
        began = time.process_time()
        made = token_record(*args)
        seconds["record"].append(time.process_time() - began)
        return made

    def update(kind: str) -> None:
        record = timed_record if kind == "with" else lambda *args: None
        with patch("rl.learner.updater.token_record", record):
            began = time.process_time()
            updater.update(groups)
            if updater.record is not None:
                written = time.process_time()
                write_learner_columns(path, groups, asdict(updater.record))
                seconds["file"].append(time.process_time() - written)
            seconds[kind].append(time.process_time() - began)

    update("with")  # warms up
    for column in seconds.values():
        column.clear()
    for pair in range(pairs):
        for kind in ("with", "without") if pair % 2 else ("without", "with"):
            update(kind)
    ratios = np.asarray(seconds["with"]) / np.asarray(seconds["without"])
    drawn = np.random.default_rng(0).choice(ratios, (10_000, pairs))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    count = sum(len(s) for group in groups for t in group.trajectories for s in t.segments)
    calls_s = calls_cost(folder, 5 * pairs)
    added = np.asarray(seconds["record"]) + np.asarray(seconds["file"])
    return {
        "pairs": pairs,
        "tokens": count,
        "update_s": float(np.median(seconds["without"])),
        "ratio": float(np.median(ratios)),
        "ratio_interval": [float(low), float(high)],
        "record_s": float(np.median(seconds["record"])),
        "file_s": float(np.median(seconds["file"])),
        "added_share": float(np.median(added) / np.median(seconds["without"])),
        "calls": GROUPS * GROUP * TURNS * CALLS,
        "calls_s": calls_s,
        "calls_share": calls_s / float(np.median(seconds["without"])),
        "bytes_per_token": learner_path(path).stat().st_size / count,
        "bytes_per_token_of_tokens": tokens_path(path).stat().st_size / count,
    }


def main() -> None:
    words = sys.argv[1:]
    out = Path(words.pop()) if words and words[-1].endswith(".json") else None
    with tempfile.TemporaryDirectory() as folder:
        found = measure(int(words[0]) if words else 20, Path(folder))
    found |= {"load": os.getloadavg()[0], "versions": versions()}
    print(json.dumps(found))
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Folders of runs with made-up episodes, for tests of the viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from envs.episode import EnvToolCall
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import write_trajectories

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are bytes."""
    vocabulary = {letter: number for number, letter in enumerate(ALPHABET)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def episode(
    question: str, answer: str, reward: float, *, task: int = 0, member: int = 0, **changes: Any
) -> Trajectory:
    """An episode of two turns: a call of a tool, then ``answer``."""
    tokenizer, segment = byte_tokenizer(), Segment()
    measures = (0.125, 2, "HTTP 200")
    call = EnvToolCall("search", {"query": question}, "The friend is Bali.", None, 1.0, *measures)
    turns = []
    for number, (context, action) in enumerate([(question, "look"), (call.text, answer)]):
        ids = tokenizer.encode(action).ids
        logprobs = [-0.1 * (1 + i % 5) for i in range(len(ids))]
        segment.append_context(tokenizer.encode(context).ids, number)
        completion = Completion(ids, logprobs, [number] * len(ids), FinishReason.STOP_TOKEN)
        segment.append_completion(completion, number)
        last = number == 1
        turns.append(
            Turn(
                action,
                "" if last else call.text,
                "stop_token",
                len(ids),
                rewards={"right": reward} if last else {},
                scores={"right": reward} if last else {},
                tool_calls=[] if last else [call],
                generate_s=0.5,
                env_s=0.25,
            )
        )
    fields: dict[str, Any] = {"terminated": True, "outcome": reward} | changes
    return Trajectory(
        "search-qa-v0", {}, task, 1, member, [segment], turns, observation=question, **fields
    )


def write_learner_columns(path: Path, groups: list[TrajectoryGroup]) -> None:
    """Write what the learner computed: advantages by reward, and a shifted log-probability."""
    columns: dict[str, list[float]] = {"advantages": [], "logprobs": [], "entropies": []}
    for group in groups:
        for trajectory in group.trajectories:
            (segment,) = trajectory.segments
            for mask, logprob in zip(segment.loss_mask, segment.sampling_logprobs, strict=True):
                columns["advantages"].append(trajectory.reward - 0.5 if mask else np.nan)
                columns["logprobs"].append(logprob + np.log(1.25) if mask else np.nan)
                columns["entropies"].append(1.5 if mask else np.nan)
    name = path.name.removesuffix(".jsonl.gz") + ".learner.npz"
    arrays = {key: np.array(values, np.float32) for key, values in columns.items()}
    np.savez(path.with_name(name), **arrays)


def write_step(
    folder: Path, name: str, groups: list[TrajectoryGroup], learner: bool = True
) -> None:
    """Write a file of episodes into a run's folder."""
    path = folder / "trajectories" / f"{name}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trajectories(path, groups)
    path.with_name(f"{name}.learner.npz").unlink(missing_ok=True)
    if learner:
        write_learner_columns(path, groups)


def groups_of(step: int, tasks: int = 3, members: int = 2) -> list[TrajectoryGroup]:
    """Groups whose first member is right and whose other members are wrong."""
    return [
        TrajectoryGroup(
            [
                episode(
                    f"Question {task} of step {step}: who is the friend?",
                    "Bali" if member == 0 else "I do not know",
                    float(member == 0),
                    task=task,
                    member=member,
                )
                for member in range(members)
            ]
        )
        for task in range(tasks)
    ]


def write_run(folder: Path, steps: int = 3, seed: int = 0) -> Path:
    """Write a run with episodes, metrics, settings, a tokenizer and a result."""
    best = folder / "checkpoints" / "best"
    best.mkdir(parents=True)
    byte_tokenizer().save(str(best / "tokenizer.json"))
    config = {
        "env": {"env_id": "search-qa-v0", "options": {"max_turns": 2}},
        "algo": {"name": "grpo"},
        "model": "tiny",
        "steps": steps,
        "seed": seed,
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines: list[dict[str, Any]] = [{"step": 0, "eval/success": 0.25}]
    for step in range(1, steps + 1):
        write_step(folder, f"step-{step:06d}", groups_of(step))
        reward = step / (steps + 1)
        lines.append(
            {
                "step": step,
                "num_groups": 3.0,
                "reward": reward,
                "reward_low": reward - 0.1,
                "reward_high": reward + 0.1,
                "entropy": 1.0 / step,
                "grad_norm": 0.5,
                "time/wall": 2.0,
                "time/rollout/generate": 1.5,
                "time/rollout/idle": 0.5,
                "time/learner/learn": 2.0,
            }
        )
    lines[-1]["eval/success"] = 0.75
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rate = {"success": 0.25, "success_low": 0.1, "success_high": 0.4, "tasks": 16}
    result = {"finished": True, "steps": steps, "before": rate, "after": rate | {"success": 0.75}}
    (folder / "result.json").write_text(json.dumps(result | {"seconds": 6.0, "seed": seed}))
    return folder

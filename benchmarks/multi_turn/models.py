"""The model that every trainer starts from, and the evaluation of the checkpoints."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import rl
from rl.external.env import AgentOptions
from rl.runtime.tiny import make_tiny

from . import games
from .games import MAX_TOKENS, MAX_TURNS, TEMPERATURE, make_tasks

PLAY = f"{games.__file__}:play"
_RECIPE = rl.TinyRecipe(demonstrations=2000, steps=300)
"""Warm start until the model writes valid messages, and errs as the demonstrator does."""
_WINDOW = 256
"""Maximum number of tokens of an episode."""


def write_tasks(game: str, split: str, folder: Path) -> Path:
    """Write the tasks of a split as JSON lines."""
    path = folder / f"{game}-{split}.jsonl"
    rows = [
        task | {"split": "test" if split == "test" else "train"} for task in make_tasks(game, split)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def start_model(game: str, folder: Path) -> str:
    """The small model that every training of a game starts from. The same seed for all seeds."""
    options = AgentOptions(
        loop=PLAY,
        tasks=str(write_tasks(game, "train", folder)),
        demonstrations=f"{games.__file__}:demonstrate",
        max_turns=MAX_TURNS,
    )
    made = make_tiny("agent", options, {}, seed=0, recipe=_RECIPE, report=lambda line: None)
    return str(asyncio.run(made))


def success(model: str, game: str, folder: Path, threads: int) -> float:
    """The share of test tasks that a checkpoint solves, sampled at temperature 1."""
    played = rl.evaluate(
        rl.EvaluateConfig(
            env={
                "name": "agent",
                "loop": PLAY,
                "tasks": str(write_tasks(game, "test", folder)),
                "max_turns": MAX_TURNS,
            },
            model=model,
            sampling={"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE},
            context_length=_WINDOW,
            split="test",
            threads=threads,
        )
    )
    return played.success.rate

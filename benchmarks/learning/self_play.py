"""Self-play in a game with a known solution: exploitability before and after training.

    python -m benchmarks.learning.self_play [--seed 0] [--set KEY=VALUE ...] [--out FOLDER]

The run is ``python -m rl.train env=kuhn-poker algo=spiral model=tiny`` in its own process: one
policy plays both roles of Kuhn poker. A small penalty for the divergence from the warm start keeps
the strategy mixed (Sokota et al. 2022, arXiv 2206.05825). Exploitability is computed from the
model's probabilities of the legal moves in all 12 information sets, without samples. Text other
than a legal move in its usual tokens counts as an illegal move.
Writes FOLDER/self_play.json and prints it. A run whose folder is complete is not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import rl
from agents.renderer import Renderer
from benchmarks.train_runs import finished_run
from envs.poker.env import moves_after, prompt, written
from envs.poker.game import exploitability, information_sets, value
from rl.run.folder import read_jsonl, versions
from rl.runtime.tiny import make_tiny

WORDS = {
    "env": "kuhn-poker",
    "env.instructions": "false",
    "algo": "spiral",
    "group_size": "1",
    "prompts": "96",
    "steps": "30",
    "max_seconds": "420",
    "algo.kl.coef": "0.05",
    "optimizer.lr": "6e-4",
    "sampling.max_tokens": "16",
    "sampling.slots": "128",
    "eval.tasks": "0",
    "eval.test_tasks": "0",
    "tiny.demonstrations": "1500",
    "tiny.steps": "200",
    "tiny.hidden_size": "64",
    "tiny.num_heads": "2",
    "tiny.num_layers": "2",
    "tiny.vocab_size": "300",
    "tiny.context_length": "256",
    "tiny.warmup_steps": "20",
}


@torch.inference_mode()
def strategy_of(folder: Path) -> dict[str, tuple[float, float]]:
    """The probabilities with which a model passes and bets in each information set."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    renderer = Renderer(AutoTokenizer.from_pretrained(folder))
    keys = [*information_sets(0), *information_sets(1)]
    return {key: _move_probabilities(model, renderer, key[0], key[1:]) for key in keys}


def _move_probabilities(
    model: PreTrainedModel, renderer: Renderer, card: str, history: str
) -> tuple[float, float]:
    """The probabilities to pass and to bet with a card after a history."""
    if history == "pb":
        before = renderer.begin(prompt(card, ""), None)
        before += renderer.splice(written(moves_after("")[0]))
        before += renderer.observe(prompt(card, history), last=None)
    else:
        before = renderer.begin(prompt(card, history), None)
    passes, bets = (
        _probability(model, before, renderer.splice(written(move))) for move in moves_after(history)
    )
    return passes, bets


def _probability(model: PreTrainedModel, before: list[int], text: list[int]) -> float:
    """The probability that a model continues ``before`` with the tokens ``text``."""
    logits = model(torch.tensor([before + text])).logits[0].double()
    logprobs = logits[len(before) - 1 : -1].log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(text)[:, None]).sum().exp())


def measured(folder: Path) -> dict[str, Any]:
    """A model's strategy: its exploitability, its value in self-play, its smallest legal share."""
    strategy = strategy_of(folder)
    return {
        "exploitability": float(exploitability(strategy)),
        "value": float(value(strategy, strategy)),
        "least_legal": min(sum(moves) for moves in strategy.values()),
        "strategy": {key: [round(p, 4) for p in moves] for key, moves in strategy.items()},
    }


def warm_start(words: dict[str, str]) -> Path:
    """The folder of the warm start from which the run begins."""
    config = rl.TrainConfig(**words)
    options = config.env.options
    made = make_tiny(
        config.env.env_id,
        options,
        {},
        seed=config.seed,
        recipe=config.tiny,
        report=lambda line: None,
    )
    return asyncio.run(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/self-play"))
    options = parser.parse_args()
    words = WORDS | {"seed": str(options.seed)}
    words |= dict(word.split("=", 1) for word in options.set)
    before = measured(warm_start(words))
    out = options.out / f"run-{options.seed}"
    listed = [f"{key}={text}" for key, text in words.items()]
    seconds = finished_run("rl.train", listed, out)
    last = max((out / "checkpoints").glob("step-*"))
    record = {
        "command": " ".join(["python -m rl.train", *listed]),
        "seconds": seconds,
        "steps": int(last.name.removeprefix("step-")),
        "before": before,
        "after": measured(last),
        "legal": [
            [r["step"], r["scores/legal"]]
            for r in read_jsonl(out / "metrics.jsonl")
            if "scores/legal" in r
        ],
        "cores": os.cpu_count(),
        **versions(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (options.out / "self_play.json").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()

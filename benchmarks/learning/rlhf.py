"""RLHF end to end, measured by the hidden rule that made the preferences.

    python -m benchmarks.learning.rlhf [--seeds 0 1 2] [--out FOLDER] [--set key=value ...]

For each seed this runs ``recipes/rlhf.toml`` unchanged, in the world ``letters-v0``
(benchmarks/studies/worlds/letters.py), whose reward is the hidden rule. A tiny model is trained by
supervised learning and writes letters, and the rule ranks them. A reward model learns the rankings,
PPO learns from the reward model alone, and DPO from the rankings. Then the rule scores letters to
the same held-out prompts. PPO's weights are those of its last step, so no choice depends on the
rule.

Seeds run one after the other, each in its own process with an empty cache. Writes FOLDER/rlhf.json
and prints the table. A seed whose folder is complete is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.studies.tables import as_text, interval
from benchmarks.train_runs import finished_run
from rl.run.folder import read_jsonl, versions

WORLDS = "benchmarks.studies.worlds"
RECIPE = "recipes/rlhf.toml"
MODEL = ["tiny.hidden_size=64", "tiny.num_heads=2", "tiny.intermediate_size=192"]
WORDS = [
    *("env=letters", *MODEL, "tiny.demonstrations=3500", "tiny.steps=400"),
    *("sampling.max_tokens=48", "sft.test_tasks=0"),
    # The rule must not choose among PPO's weights: it is asked once, of a few letters.
    *("ppo.eval.every=1000", "ppo.eval.tasks=8", "ppo.eval.test_tasks=0"),
]
TEST = ["env=letters", "split=test", "tasks=1024", "sampling.max_tokens=48"]
_STAGE = re.compile(r"stage \d+/\d+, ([\w-]+):")
Curve = Sequence[Mapping[str, float]]


def reported(log: str) -> dict[str, dict[str, Any]]:
    """The last line of JSON of each stage in a pipeline's log."""
    found: dict[str, dict[str, Any]] = {}
    name = ""
    for line in log.splitlines():
        if begun := _STAGE.match(line):
            name = begun[1]
        elif name and line.startswith("{"):
            found.setdefault(name, json.loads(line))
    return found


def ppo_curve(records: Iterable[Mapping[str, float]], episodes: int) -> list[dict[str, float]]:
    """Scores of the rule and of the reward model, and the KL from the SFT model, by PPO step.

    Args:
        records: lines of metrics.jsonl.
        episodes: of a step.

    Returns:
        ``kl`` in nats per episode, the metric being a mean over tokens.
    """
    return [
        {
            "step": r["step"],
            "true": r["reward"],
            "proxy": r["shaping/reward_model"],
            "pairs": r["agreement/reward_model/pairs"],
            "ranks": r["agreement/reward_model/ranks"],
            "kl": r["kl"] * r["num_tokens"] / episodes,
            "kl_coef": r["kl_coef"],
            "length": r["completions/mean_length"],
        }
        for r in records
        if "kl" in r
    ]


def last_half(curve: Curve, key: str) -> float:
    """The mean over the last half of the steps, the middle one of an odd number included."""
    return fmean(point[key] for point in curve[len(curve) // 2 :])


def fallen_from_best(curve: Curve, window: int = 5) -> float:
    """Fall of the true reward from its best to its end, both as means of some steps.

    0 where the end is the best; what is above 0 while the proxy rises is over-optimization.
    """
    true = [point["true"] for point in curve]
    means = [fmean(true[i : i + window]) for i in range(max(1, len(true) - window + 1))]
    return max(means) - means[-1]


def run_seed(seed: int, folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """The pipeline and the tests of one seed."""
    out, row = folder / f"seed-{seed}", folder / f"seed-{seed}.json"
    if row.exists():
        kept: dict[str, Any] = json.loads(row.read_text())
        return kept
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [RECIPE, *WORDS, f"seed={seed}", *extra]
    with tempfile.TemporaryDirectory(prefix="turnwise-cold-") as cache:
        os.environ["TURNWISE_CACHE"] = cache
        seconds = finished_run(f"{WORLDS} rl.pipeline", words, out)
    said = reported((folder / f"seed-{seed}.log").read_text())
    settings = json.loads((out / "4-ppo" / "config.json").read_text())
    curve = ppo_curve(
        read_jsonl(out / "4-ppo" / "metrics.jsonl"), settings["prompts"] * settings["group_size"]
    )
    models = {
        "sft": "1-sft/checkpoints/last",
        "ppo": f"4-ppo/checkpoints/step-{settings['steps']:06d}",
        "dpo": "5-dpo/checkpoints/last",
    }
    true = {}
    for name, path in models.items():
        tested = out / f"test-{name}"
        seconds += finished_run(
            f"{WORLDS} rl.eval", [*TEST, f"seed={seed}", f"model={out / path}"], tested
        )
        result = json.loads((tested / "result.json").read_text())
        true[name] = [result[key] for key in ("success", "success_low", "success_high")]
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "seed": seed,
        "seconds": seconds,
        "cpu_seconds": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
        "load_average": os.getloadavg()[2],
        "stage_seconds": {
            path.parent.name: json.loads(path.read_text())["seconds"]
            for path in sorted(out.glob("*/stage.json"))
        },
        "sft_loss": [said["sft"]["first_loss"], said["sft"]["last_loss"]],
        "pairs": said["pairs"]["num_pairs"],
        "reward_model": _figures(said["reward"]),
        "dpo": _figures(said["dpo"]),
        "true_reward": true,
        "kl_target": settings["algo"]["row"]["kl_target"],
        "ppo": curve,
        **versions(),
    }
    row.write_text(json.dumps(result) + "\n")
    return result


def _figures(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a stage's result, without its folder, which differs between machines."""
    return {name: value for name, value in result.items() if name != "model"}


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each figure: its mean over seeds, the t-interval, and each seed's value."""
    curves = [row["ppo"] for row in rows]
    figures = {
        "SFT's loss, nats a token, first step": [row["sft_loss"][0] for row in rows],
        "the same, last step": [row["sft_loss"][1] for row in rows],
        "reward model, held-out pairs in order": [row["reward_model"]["accuracy"] for row in rows],
        **{
            f"true reward, test prompts: {name}": [row["true_reward"][name][0] for row in rows]
            for name in ("sft", "ppo", "dpo")
        },
        "KL, nats an episode, last half of PPO": [last_half(curve, "kl") for curve in curves],
        "the same, of its target": [last_half(row["ppo"], "kl") / row["kl_target"] for row in rows],
        "agreement on siblings, first step": [curve[0]["pairs"] for curve in curves],
        "agreement on siblings, last half": [last_half(curve, "pairs") for curve in curves],
        "reward model's reward, first step": [curve[0]["proxy"] for curve in curves],
        "reward model's reward, last half": [last_half(curve, "proxy") for curve in curves],
        "true reward, last half": [last_half(curve, "true") for curve in curves],
        "true reward lost since its best": [fallen_from_best(curve) for curve in curves],
    }
    return [{"figure": name} | interval(values) for name, values in figures.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/rlhf"))
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    options = parser.parse_args()
    rows = [run_seed(seed, options.out.resolve(), options.set) for seed in options.seeds]
    lines = table(rows)
    recipe = tomllib.loads(Path(RECIPE).read_text())
    record = {
        "command": f"python -m {WORLDS} rl.pipeline {RECIPE} {' '.join([*WORDS, *options.set])}",
        "test": f"python -m {WORLDS} rl.eval {' '.join(TEST)}",
        "recipe": recipe,
        "device": "cpu",
        "cores": os.cpu_count(),
        "table": lines,
        "slowest_seconds": max(row["seconds"] for row in rows),
        "seeds": rows,
    }
    (options.out / "rlhf.json").write_text(json.dumps(record, indent=1) + "\n")
    shown = [
        {"figure": line["figure"], "mean over seeds": line, "each": _numbers(line["each"])}
        for line in lines
    ]
    sys.stdout.write(as_text(shown))
    for row in rows:
        took = f"{row['seconds']:.0f} s, {row['cpu_seconds']:.0f} s of them computing"
        sys.stdout.write(f"seed {row['seed']}: {took}, load average {row['load_average']:.1f}\n")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    main()

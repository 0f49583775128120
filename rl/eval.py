"""``python -m rl.eval model=FOLDER env=code-sandbox``: how often a model succeeds."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from rl.command import run_command
from rl.config import EvaluateConfig, run_path


async def evaluate(config: EvaluateConfig) -> dict[str, object]:
    """Play the episodes that ``config`` asks for.

    Returns:
        Success with its 95% interval, and the metrics of the episodes.
    """
    from rl.run.folder import write_trajectories
    from rl.run.metrics import rollout_metrics
    from rl.stage import EVALUATE, open_stage

    async with open_stage(config, _say) as stage:
        rate, groups = await stage.evaluate(
            config.split, config.tasks, EVALUATE, config.sampling.temperature, config.episodes
        )
        result: dict[str, object] = {
            "env": config.env.env_id,
            "model": config.model,
            "split": config.split,
            "score": stage.success_score or "return",
            "success": rate.rate,
            "success_low": rate.low,
            "success_high": rate.high,
            "episodes": rate.count,
            **rollout_metrics(groups),
        }
    if config.out:
        folder = run_path(config.out, config)
        folder.mkdir(parents=True, exist_ok=True)
        write_trajectories(folder / "trajectories.jsonl.gz", groups)
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.eval", EvaluateConfig, {}, _run, argv)


def _run(config: EvaluateConfig) -> int:
    sys.stdout.write(json.dumps(asyncio.run(evaluate(config))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Read a run that learns nothing: the token limit cuts every answer, so all rewards are equal.

Run with: python examples/10_read_a_failing_run.py (seconds)

The run reports it while it trains, in result.json and on curve.png, where crosses mark the steps
without a gradient. ``python -m rl.view RUN`` shows it in a web browser, with the episodes.
docs/troubleshooting.md lists the other causes.

Prints:
    steps without a gradient: 2 of 2
    causes: {'cut': 2}
    what to try: raise sampling.max_tokens or context_length
    share of cut answers: 1.00
    an answer: '...', finish reason length
    with room for an answer: causes {...}
"""

from __future__ import annotations

import tempfile

import rl
from rl.rollout.trajectory_files import read_trajectories

QUICK = {**rl.PRESETS["smoke"], "steps": 2, "eval.test_tasks": 0, "eval.tasks": 0}


def train(folder: str, max_tokens: int) -> rl.Run:
    settings = QUICK | {"sampling.max_tokens": max_tokens, "out": f"{folder}/{max_tokens}"}
    return rl.fit(rl.TrainConfig(env={"name": "search-qa", "hops": "2"}, **settings))


def main() -> None:
    folder = tempfile.mkdtemp()
    run = train(folder, max_tokens=3)
    result = run.result
    print(f"steps without a gradient: {result['steps_without_gradient']} of {run.steps}")
    print(f"causes: {result['no_gradient_causes']}")
    print(f"what to try: {result['what_to_try']}")
    print(f"share of cut answers: {run.metrics['completions/clipped_ratio']:.2f}")
    newest = sorted((run.folder / "trajectories").glob("step-*.jsonl.gz"))[-1]
    turn = read_trajectories(newest)[0].turns[0]
    print(f"an answer: {turn.action!r}, finish reason {turn.finish_reason}")
    repaired = train(folder, max_tokens=96)
    print(f"with room for an answer: causes {repaired.result['no_gradient_causes']}")


if __name__ == "__main__":
    main()

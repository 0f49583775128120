"""Complaint 12: a resumed run loses work: it skips tasks, and long tasks more often than others.

NeMo#3599, OpenRLHF#1322, AReaL#1388.
"""

from __future__ import annotations

from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.train import main


def played(out):
    """Each step's episodes: tasks, tokens and rewards."""
    steps = []
    for path in sorted((out / "trajectories").glob("step-*.jsonl.gz")):
        episodes = read_trajectories(path)
        steps.append([(t.task, t.member, t.segments, t.seed) for t in episodes])
    return steps


def losses(out):
    return [(r["step"], r["loss"]) for r in read_jsonl(out / "metrics.jsonl") if "loss" in r]


def test_a_resumed_run_plays_the_episodes_of_an_uninterrupted_one(words, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(words(whole)) == 0
    assert main(words(parts, steps=3)) == 0
    assert main(words(parts, resume="auto")) == 0
    assert played(parts) == played(whole)
    assert losses(parts) == losses(whole)
    tasks = [{task for task, *_ in step} for step in played(whole)]
    assert len(set.union(*tasks)) == 4 * 6, "no task twice before all were there"

"""Checks, from the files of a run, which task entered which update.

With the uniform curriculum, group number k (from 0) has the k-th task of the run's order and a
unique seed. The seeds in an update therefore identify its groups: each group must have entered
exactly one update, or be in the last checkpoint as played ahead.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import envs
from rl.learner.checkpoint import load_trainer_state
from rl.replay import config_of
from rl.rollout.episode import seed_of
from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import read_trajectories

TOLERANCE = 1e-9
TRAIN = 0
"""The number of training among what a run draws seeds for."""


@dataclass
class TaskLedger:
    """The tasks of a run according to its files."""

    learned: dict[int, int] = field(default_factory=dict)
    """From the number of a group to the update that it entered."""
    ahead: list[int] = field(default_factory=list)
    """Groups in the last checkpoint that entered none."""
    failed: int = 0
    """Episodes that failed, of groups that entered an update."""
    begun_again: int = 0
    """Episodes that a failure made begin again."""
    wrong: list[str] = field(default_factory=list)
    """Violations, one line each."""

    def to_json(self) -> dict[str, Any]:
        """The ledger as plain data for a report."""
        return {
            "groups learned from": len(self.learned),
            "groups ahead": len(self.ahead),
            "episodes failed": self.failed,
            "episodes begun again": self.begun_again,
            "wrong": self.wrong,
        }


def order_of(num_tasks: int, seed: int, count: int) -> list[int]:
    """The first ``count`` tasks of a run: each once per pass, a new order in every pass."""
    passes = -(-count // num_tasks)
    orders = [np.random.default_rng([seed, n]).permutation(num_tasks) for n in range(passes)]
    return [int(task) for order in orders for task in order][:count]


def last_step(run: Path) -> int:
    """That of a run's newest checkpoint; 0 where it has none."""
    names = [path.name for path in (run / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def read_ledger(run: Path) -> TaskLedger:
    """Read the files of a run with the uniform curriculum, up to its newest checkpoint."""
    config, steps = config_of(run), last_step(run)
    options = config.env.options
    env = envs.env_type(config.env.env_id)(options, {})
    ledger = TaskLedger()
    per_group, count = config.group_size, (steps + config.staleness + 1) * config.prompts
    tasks = order_of(len(env.tasks), config.seed, count)
    numbers = {}
    for number in range(count):
        step, position = divmod(number, config.prompts)
        numbers[seed_of(config.seed, TRAIN, step + 1, position)] = number
    records = _steps(run, steps, ledger)
    for step in range(1, steps + 1):
        path = run / "trajectories" / f"step-{step:06d}.jsonl.gz"
        if not path.is_file():
            ledger.wrong.append(f"step {step} has no episodes")
            continue
        episodes = read_trajectories(path)
        members = Counter(episode.seed for episode in episodes)
        if sorted(members.values()) != [per_group] * config.prompts:
            ledger.wrong.append(f"step {step} has groups of {sorted(members.values())} episodes")
        for episode in episodes:
            number = numbers.get(episode.seed, -1)
            if number < 0 or episode.task != tasks[number]:
                ledger.wrong.append(
                    f"step {step}: task {episode.task} is not the next task of any group"
                )
            elif ledger.learned.setdefault(number, step) != step:
                first = ledger.learned[number]
                ledger.wrong.append(f"group {number} entered the updates {first} and {step}")
        _check_episodes(step, episodes, records.get(step), config.staleness, ledger)
    _check_complete(run, steps, config.prompts, ledger)
    return ledger


def _steps(run: Path, steps: int, ledger: TaskLedger) -> dict[int, dict[str, Any]]:
    """The metrics of each step."""
    records: dict[int, dict[str, Any]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" not in record:
            continue
        if record["step"] in records:
            ledger.wrong.append(f"step {record['step']} has two lines of metrics")
        records[record["step"]] = record
    if list(records) != list(range(1, steps + 1)):
        ledger.wrong.append(f"metrics are of the steps {list(records)}, not 1 to {steps}")
    return records


def _check_episodes(
    step: int,
    episodes: list[Trajectory],
    record: dict[str, Any] | None,
    staleness: int,
    ledger: TaskLedger,
) -> None:
    """Failures have no reward and are in no mean; no token is older than the bound."""
    finished = [episode for episode in episodes if episode.failure is None]
    failed = [episode for episode in episodes if episode.failure is not None]
    ledger.failed += len(failed)
    ledger.begun_again += sum(episode.attempts > 1 for episode in episodes)
    if any(e.terminated or e.truncated or e.shaping for e in failed):
        ledger.wrong.append(f"step {step}: an episode that failed was ended or shaped")
    versions = [v for e in finished for s in e.segments for v in s.versions if v >= 0]
    if versions and (oldest := step - 1 - min(versions)) > staleness:
        ledger.wrong.append(f"step {step} learned from tokens that are {oldest} updates old")
    if record is None:
        return
    mean = sum(e.reward for e in finished) / max(len(finished), 1)
    if abs(mean - record["reward"]) > TOLERANCE:
        ledger.wrong.append(f"step {step}: the mean reward is {mean}, logged {record['reward']}")
    if record.get("failures", 0) != len(failed):
        ledger.wrong.append(f"step {step}: {len(failed)} failures, {record.get('failures')} logged")


def _check_complete(run: Path, steps: int, prompts: int, ledger: TaskLedger) -> None:
    """No group is missing: all that began entered an update or are in the last checkpoint."""
    state = load_trainer_state(run / "checkpoints" / f"step-{steps:06d}")
    stream = state.get("stream", {"begun": steps * prompts, "ahead": []})
    ledger.ahead = sorted(one["number"] for one in stream["ahead"])
    known = sorted([*ledger.learned, *ledger.ahead])
    if known != list(range(stream["begun"])):
        seen = Counter(known)
        missing = [n for n in range(stream["begun"]) if not seen[n]]
        twice = [n for n, times in seen.items() if times > 1]
        ledger.wrong.append(f"groups that are missing: {missing}; that come twice: {twice}")

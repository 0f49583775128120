"""A run's folder as the planner reads it: its episodes, the seconds of its steps, its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.segment import Segment
from rl.errors import UsageError
from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import LINES, read_trajectories
from rl.settings.parsing.files import read_run

MOST_STEPS = 8
"""Number of newest steps that are read."""
_LEARNER = "time/learner/"
_OTHER = ("reward", "write", "callbacks", "idle")
"""States of the learner's lane that are neither sampling, learning nor sync. Validation and
checkpoints belong to few steps and are left out."""


class PlayedTurn(NamedTuple):
    """What a turn of a recorded episode asks of the samplers and of the environment."""

    context: int
    """Number of tokens before the first sampled token."""
    prefill: int
    """Number of these tokens that no earlier turn and no other member of the group computed."""
    sampled: int
    env_s: float
    """Seconds of the environment's answer."""
    generate_s: float = 0.0
    """Recorded seconds from the request to its answer. No simulation reads them."""

    def changed(self, factor: float, environment_s: float) -> PlayedTurn:
        """The turn with ``factor`` times as many tokens, and ``environment_s`` more seconds."""
        return self._replace(
            context=round(self.context * factor),
            prefill=round(self.prefill * factor),
            sampled=max(1, round(self.sampled * factor)),
            env_s=self.env_s + environment_s,
        )


Group = Sequence[Sequence[PlayedTurn]]
"""The episodes of a task. Each is a sequence of turns."""


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step."""

    groups: list[Group]
    rollout_s: float
    """Seconds in which the learner waited for episodes."""
    generate_s: float
    """Seconds in which the policy had a request."""
    learn_s: float
    sync_s: float
    other_s: float
    wall_s: float
    """Seconds of the step, without validation and checkpoints."""
    states: Mapping[str, float]
    """Seconds of the rollouts in each state."""
    learned_tokens: float
    """Tokens that the learner computed. Prompts count once in a group."""
    longest_row: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A measured run."""

    name: str
    steps: list[Step]
    prompts: int
    group_size: int
    slots: int
    samplers: int
    staleness: int
    micro_batch_tokens: int
    num_parameters: int
    """0 if the run did not record it."""
    device: str

    @property
    def groups(self) -> list[Group]:
        """The groups of all steps."""
        return [group for step in self.steps for group in step.groups]


def read_recorded(folder: str) -> Recorded:
    """Read a run.

    The first step is left out if there are others, because caches and kernels warm up in it.

    Raises:
        UsageError: the folder holds no run, or the run recorded no seconds or no episodes.
    """
    settings = read_run(folder, "run")
    path = Path(folder).expanduser()
    records = _records(path / "metrics.jsonl")
    if not records:
        raise UsageError(
            f"run={folder} has no step with a ledger (time/wall in metrics.jsonl): give a run that "
            "finished a step"
        )
    usable = [r for r in records if (path / "trajectories" / _name(r["step"])).is_file()]
    if not usable:
        raise UsageError(
            f"run={folder} has no episodes of its {len(records)} steps in trajectories/: give a "
            "run with keep_episodes=0, or with another folder's trajectories restored"
        )
    chosen = (usable[1:] or usable)[-MOST_STEPS:]
    packing = settings.get("packing", "true").lower() == "true"
    facts = _json(path / "versions.json")
    return Recorded(
        name=path.name,
        steps=[_step(r, path / "trajectories" / _name(r["step"]), packing) for r in chosen],
        prompts=int(settings.get("prompts", 32)),
        group_size=int(settings.get("group_size", 8)),
        slots=int(settings.get("sampling.slots", 64)),
        samplers=int(settings.get("policy.replicas", 0) or settings.get("policy.processes", 1)),
        staleness=int(settings.get("staleness", 0)),
        micro_batch_tokens=int(settings.get("micro_batch_tokens", 4096)),
        num_parameters=int(facts.get("num_parameters", 0)),
        device=str(facts.get("device", "unknown device")),
    )


def played_groups(episodes: Sequence[Trajectory]) -> list[Group]:
    """The groups of a step's episodes, which are in the order of their groups."""
    return [
        [
            _turns(episode, _common(members[0], episode) if number else 0)
            for number, episode in enumerate(members)
        ]
        for members in _by_group(episodes)
    ]


def learned_tokens(episodes: Sequence[Trajectory], packing: bool) -> int:
    """Tokens of a step's episodes in the learner's rows, where packed groups share their prompt."""
    total = 0
    for members in _by_group(episodes):
        for number, episode in enumerate(members):
            length = sum(len(segment) for segment in episode.segments)
            total += length - (_common(members[0], episode) if packing and number else 0)
    return total


def _by_group(episodes: Sequence[Trajectory]) -> list[list[Trajectory]]:
    finished = [episode for episode in episodes if episode.failure is None and episode.segments]
    # A group's episodes have one task and one seed.
    return [list(own) for _, own in groupby(finished, lambda one: (one.part, one.task, one.seed))]


def _turns(episode: Trajectory, shared: int) -> list[PlayedTurn]:
    """The turns of an episode. Its first ``shared`` tokens are in a sampler's cache."""
    made, cached = [], shared
    for segment in episode.segments:
        for start, end, number in _sampled(segment):
            turn = episode.turns[number] if number < len(episode.turns) else None
            env_s, generate_s = (turn.env_s, turn.generate_s) if turn else (0.0, 0.0)
            prefill = max(0, start - cached)
            made.append((number, PlayedTurn(start, prefill, end - start, env_s, generate_s)))
            cached = end
        # Each role, and each context after a compaction, begins with tokens of its own.
        cached = 0
    return [turn for _, turn in sorted(made, key=lambda one: one[0])]


def _sampled(segment: Segment) -> list[tuple[int, int, int]]:
    """The start, the end and the number of each turn's sampled tokens."""
    sampled = np.asarray(segment.loss_mask, np.bool_)
    turns = np.where(sampled, np.asarray(segment.turn_ids), -1)
    edges = np.flatnonzero(np.diff(turns, prepend=-1, append=-1))
    spans = [(int(a), int(b), int(turns[a])) for a, b in pairwise(edges.tolist())]
    return [span for span in spans if span[2] >= 0]


def _common(first: Trajectory, other: Trajectory) -> int:
    """Number of first tokens that two episodes have in common, before any sampled token."""
    a, b = first.segments[0], other.segments[0]
    prompt = int(np.argmax(np.asarray(a.loss_mask, np.bool_))) if any(a.loss_mask) else len(a)
    length = min(prompt, len(b))
    same = np.asarray(a.token_ids[:length]) == np.asarray(b.token_ids[:length])
    return length if same.all() else int(np.argmin(same))


def _step(record: Mapping[str, Any], path: Path, packing: bool) -> Step:
    episodes = read_trajectories(path)
    scored = record.get("num_tokens", 0.0)
    share = 1 - record.get("unscored_tokens", 0.0) / scored if scored else 1.0
    other = sum(record.get(_LEARNER + state, 0.0) for state in _OTHER)
    aside = sum(record.get(_LEARNER + state, 0.0) for state in ("validate", "save"))
    states = ("generate", "queue", "environment", "tool", "partner")
    return Step(
        groups=played_groups(episodes),
        rollout_s=record.get(_LEARNER + "sampling", 0.0),
        generate_s=record.get("time/policy/generate", 0.0),
        learn_s=record.get(_LEARNER + "learn", 0.0),
        sync_s=record.get(_LEARNER + "sync", 0.0),
        other_s=other,
        wall_s=record["time/wall"] - aside,
        states={state: record.get(f"time/rollout/{state}", 0.0) for state in states},
        learned_tokens=share * learned_tokens(episodes, packing),
        longest_row=max((len(s) for e in episodes for s in e.segments), default=0),
        sampled=sum(episode.num_sampled for episode in episodes),
    )


def _records(path: Path) -> list[dict[str, Any]]:
    """The steps in metrics.jsonl that have a ledger; an incomplete last line is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return [r for r in records if "time/wall" in r and "step" in r and r["step"] > 0]


def _json(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read


def _name(step: int) -> str:
    return f"step-{step:06d}{LINES}"

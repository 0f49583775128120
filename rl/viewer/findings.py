"""What is wrong with a run: its findings, the most important first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl.rollout.trajectory_files import LINES, read_learner_columns, read_trajectories
from rl.viewer.episodes.rows import episode_file
from rl.viewer.finding import KEYS, Finding, Played, RunData
from rl.viewer.metric_findings import metric_findings
from rl.viewer.token_findings import token_findings

READ_STEPS = 2
"""Number of newest steps whose episodes are read."""
_SEVERITIES = ("high", "medium", "low")
_SHOWN = 20
"""Maximum number of episodes that a finding names."""


def findings(run: RunData) -> list[Finding]:
    """What is wrong with a run, the most important first. At most one finding of each kind."""
    found = [*token_findings(run), *metric_findings(run)]
    found.sort(key=lambda f: (_SEVERITIES.index(f.severity), KEYS.index(f.key)))
    first: dict[str, Finding] = {}
    for finding in found:
        first.setdefault(finding.key, finding)
    return [_with_examples(finding, run.played) for finding in first.values()]


def read_played(trajectories: Path, count: int = READ_STEPS) -> list[Played]:
    """The episodes of the newest training steps in a run's folder ``trajectories``.

    Raises:
        UsageError: a file is damaged.
    """
    played = []
    files = [file for path in trajectories.glob(f"step-*{LINES}") if (file := episode_file(path))]
    for path, _, step in sorted(files, key=lambda file: file.step)[-count:]:
        episodes = read_trajectories(path)
        size = sum(len(segment) for episode in episodes for segment in episode.segments)
        name = path.name.removesuffix(LINES)
        columns = read_learner_columns(path, size)
        played.append(Played(name, step, episodes, columns))
    return played


def _with_examples(finding: Finding, played: Sequence[Played]) -> Finding:
    """The finding. That of cut answers names episodes, because no query selects them."""
    if finding.key != "answers_cut":
        return finding
    cut = [(p.name, i) for p in played for i, t in enumerate(p.trajectories) if t.cut_for_length]
    return replace(finding, episodes=tuple(cut[:_SHOWN])) if cut else finding

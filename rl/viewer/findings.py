"""What is wrong with a run: its findings, the most important first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rl.rollout.trajectory_files import LINES, read_learner_columns, read_trajectories
from rl.viewer.episodes.rows import episode_file
from rl.viewer.finding import EFFECTS, KEYS, Finding, Played, RunData, plural
from rl.viewer.metric_findings import metric_findings
from rl.viewer.token_findings import token_findings

READ_STEPS = 2
"""Number of newest steps whose episodes are read."""
_SEVERITIES = ("high", "medium", "low")
_EQUAL_ADVICE = "Equal episodes have equal rewards: first make the episodes of a group differ."
_MOSTLY = 0.5
_SHOWN = 20
"""Maximum number of episodes that a finding names."""


def findings(run: RunData) -> list[Finding]:
    """What is wrong with a run, the most important first. At most one finding of each kind."""
    found = [*token_findings(run), *metric_findings(run)]
    found.sort(key=lambda f: (_SEVERITIES.index(f.severity), KEYS.index(f.key)))
    first: dict[str, Finding] = {}
    for finding in found:
        first.setdefault(finding.key, finding)
    if "identical" in first and (tied := first.get("tied_rewards")):
        first["tied_rewards"] = replace(tied, advice=_EQUAL_ADVICE)
    return [
        replace(_with_examples(finding, run), cause=_cause(finding, first, run))
        for finding in first.values()
    ]


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


def _cause(finding: Finding, found: Mapping[str, Finding], run: RunData) -> str:
    """The most important finding that explains this one. A less severe one does not explain it.

    Cut answers explain only what happened in steps whose answers were mostly cut.
    """
    shares = [
        r.get("completions/clipped_ratio", 1) for r in run.steps if r["step"] in finding.steps
    ]
    for key, other in found.items():
        worse = _SEVERITIES.index(other.severity) <= _SEVERITIES.index(finding.severity)
        if key == "answers_cut" and shares and fmean(shares) < _MOSTLY:
            continue
        if worse and finding.key in EFFECTS.get(key, ()):
            return key
    return ""


def _with_examples(finding: Finding, run: RunData) -> Finding:
    """The finding. That of cut answers names the limit, and episodes that no query selects."""
    if finding.key != "answers_cut":
        return finding
    cut = [
        (p.name, i) for p in run.played for i, t in enumerate(p.trajectories) if t.cut_for_length
    ]
    if not cut:
        return finding
    detail = _limit_reached(run) + finding.detail
    return replace(finding, detail=detail, episodes=tuple(cut[:_SHOWN]))


def _limit_reached(run: RunData) -> str:
    """The limit of tokens of an answer, and the number of answers that reach it."""
    limit = run.config.get("sampling", {}).get("max_tokens")
    answers = [turn.num_tokens for p in run.played for t in p.trajectories for turn in t.turns]
    full = sum(tokens == limit for tokens in answers)
    if not full:
        return ""  # The context was full before.
    every, tokens = plural(len(answers), "answer"), plural(limit, "token")
    has = "has" if full == 1 else "have"
    return f"sampling.max_tokens is {limit}; {full} of {every} {has} {tokens}. "

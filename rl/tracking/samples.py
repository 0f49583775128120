"""A few episodes of each step as text, for trackers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rl.tracking.sink import EpisodeText

if TYPE_CHECKING:
    from rl.rollout.trajectory import Trajectory, TrajectoryGroup

LONGEST = 8000
"""Maximum number of characters of an episode. A longer one is cut in the middle."""


def episode_texts(groups: Sequence[TrajectoryGroup], count: int) -> dict[str, EpisodeText]:
    """The texts of ``count`` episodes by name (``episodes/1``, ``episodes/2``, ...).

    They are the first episodes that did not fail of the first groups, one of each group. The tasks
    of a step are in random order, so this is a random sample.
    """
    first = [group.finished[0] for group in groups if group.finished][:count]
    return {f"episodes/{n}": EpisodeText(_text(t)) for n, t in enumerate(first, 1)}


def _text(trajectory: Trajectory) -> str:
    text = "\n".join(_lines(trajectory))
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"


def _lines(trajectory: Trajectory) -> Iterator[str]:
    yield f"{trajectory.env_id}, task {trajectory.task}, reward {trajectory.reward:.3f}"
    yield from ("", "--- environment", trajectory.observation)
    for number, turn in enumerate(trajectory.turns, 1):
        yield from ("", f"--- turn {number} {turn.role}".rstrip(), turn.action)
        for call in turn.tool_calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
            yield from ("", f"--- {call.name} {arguments}", call.error or call.text)
        if turn.observation:
            yield from ("", "--- environment", turn.observation)

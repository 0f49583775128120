"""A captured episode: its conversations as segments, and its turns in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.completion import Completion
from agents.segment import Segment


@dataclass(slots=True)
class CapturedCall:
    """A tool call in an answer, and its result."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: str | None = None
    """The result, or None if the agent did not send it to the model."""


@dataclass(slots=True)
class CapturedTurn:
    """One request and its sampled answer."""

    segment: int
    """Index of the segment that contains the turn's tokens."""
    read: str
    """Texts of the messages that are new to the model, one per line."""
    said: str
    """The sampled text up to a stop string, including calls."""
    completion: Completion
    calls: list[CapturedCall] = field(default_factory=list)
    asked_at: float = 0.0
    """Time at which the request arrived, in seconds of the event loop's clock."""
    answered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured episode.

    Conversations can overlap in time. ``segments`` has them in the order of their starts. Turns are
    numbered over all conversations: a segment's ``turn_ids`` are indices of ``turns``.
    """

    segments: list[Segment]
    turns: list[CapturedTurn]
    system: str | None
    """The first system message of the episode."""


def in_order(
    segments: list[Segment], turns: list[CapturedTurn], system: str | None = None
) -> Capture:
    """A capture of these segments and turns, with the turns in the order of their segments.

    Args:
        segments: segments in the order of their starts. Their ``turn_ids`` are replaced.
        turns: the turns, in the order in which they ended.
        system: the first system message.
    """
    order = sorted(range(len(turns)), key=lambda turn: (turns[turn].segment, turn))
    rank = {turn: index for index, turn in enumerate(order)}
    for segment in segments:
        segment.turn_ids = [rank.get(turn, 0) for turn in segment.turn_ids]
    return Capture(segments, [turns[turn] for turn in order], system)

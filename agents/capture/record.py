"""What was captured of an episode: its conversations as segments, and its turns in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.completion import Completion
from agents.segment import Segment


@dataclass(slots=True)
class CapturedCall:
    """A call that an answer held, and what the agent's program said to it."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: str | None = None
    """None: the agent never told the model."""


@dataclass(slots=True)
class CapturedTurn:
    """One request and what was sampled for it."""

    segment: int
    """Index of the segment that holds its tokens."""
    read: str
    """What the model had not read before: the texts of the messages, a line each."""
    said: str
    """The whole text that was sampled, calls included, up to a stop string."""
    completion: Completion
    calls: list[CapturedCall] = field(default_factory=list)
    asked_at: float = 0.0
    """Seconds on the event loop's clock."""
    answered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Capture:
    """An episode as it was captured.

    Conversations may overlap in time. Here they stand one after the other, in the order in which
    they began, and turns are counted through them: a segment's ``turn_ids`` are indices of
    ``turns``.
    """

    segments: list[Segment]
    turns: list[CapturedTurn]
    system: str | None
    """The system message that the first conversation begins with."""


def in_order(
    segments: list[Segment], turns: list[CapturedTurn], system: str | None = None
) -> Capture:
    """Put turns that were counted as they ended into the order of their segments.

    Args:
        segments: in the order in which they began; their ``turn_ids`` are replaced.
        turns: as they ended.
        system: the first system message.
    """
    order = sorted(range(len(turns)), key=lambda turn: (turns[turn].segment, turn))
    rank = {turn: place for place, turn in enumerate(order)}
    for segment in segments:
        segment.turn_ids = [rank.get(turn, 0) for turn in segment.turn_ids]
    return Capture(segments, [turns[turn] for turn in order], system)

"""Admission that no timing can change: what makes ``deterministic=True`` so."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agents.local.request import Request
from agents.policy import PolicyFailure


class Gate:
    """Holds requests until every announced episode has asked or ended, then lets all in, in order.

    The batches that a wave goes through then depend on what its requests hold and not on when
    they came. Episodes that end are likewise told to the engine between two waves only.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._held: dict[str, Request | None] = {}
        """Announced episodes that have not ended, in their order."""
        self._ended: list[str] = []
        self._since = time.monotonic()
        """When the gate last heard of an episode."""

    def announce(self, sessions: Sequence[str]) -> None:
        """Episodes that are about to ask, in the order in which they are let in."""
        for session in sessions:
            self._held.setdefault(session, None)
        self.touch()

    def end(self, session: str) -> None:
        """Wait for this episode no more."""
        if session in self._held:
            del self._held[session]
            self._ended.append(session)
        self.touch()

    def hold(self, request: Request) -> None:
        """Keep a request for the next wave.

        Raises:
            ValueError: its episode was not announced, or asks twice at once.
        """
        session = request.session
        if session is None or session not in self._held:
            raise ValueError(
                f"session {session!r} asks without having been announced: with "
                "deterministic=True call begin(sessions) first, with every episode in its order"
            )
        if self._held[session] is not None:
            raise ValueError(
                f"session {session!r} asks twice at once: with deterministic=True "
                "an episode has one request at a time"
            )
        self._held[session] = request
        self.touch()

    def cancel(self, request: Request) -> None:
        """Let go of a request that is no longer wanted; unknown ones are ignored."""
        if request.session is not None and self._held.get(request.session) is request:
            self._held[request.session] = None

    def take_ended(self) -> list[str]:
        """Episodes that ended since the last wave."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def is_empty(self) -> bool:
        """Whether every announced episode has ended."""
        return not self._held

    @property
    def is_complete(self) -> bool:
        """Whether somebody asks and nobody is missing."""
        return bool(self._held) and None not in self._held.values()

    def take_wave(self) -> list[Request]:
        """Every held request in the announced order; none while an episode is missing."""
        return self.abandon() if self.is_complete else []

    def abandon(self) -> list[Request]:
        """Drop and return what is held, in the announced order."""
        held = [request for request in self._held.values() if request is not None]
        self._held = dict.fromkeys(self._held)
        return held

    def touch(self) -> None:
        """Start the deadline again."""
        self._since = time.monotonic()

    def remaining_s(self) -> float | None:
        """Seconds until :meth:`check` fails; None while nobody is held up."""
        if not any(self._held.values()):
            return None
        return max(0.0, self._since + self._deadline_s - time.monotonic())

    def check(self) -> None:
        """Raise PolicyFailure when the missing episodes have kept others waiting for too long."""
        if self.remaining_s() == 0.0:
            missing = [session for session, request in self._held.items() if request is None]
            raise PolicyFailure(
                f"waited {self._deadline_s:g} s for {len(missing)} episodes that neither ask nor "
                f"end: {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}; end(session) "
                "takes an episode out",
                retryable=False,
            )

"""Admits requests in waves that do not depend on timing, for ``deterministic=True``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agents.local.request import Request
from agents.policy import PolicyFailure


class Gate:
    """Holds requests until every announced episode has a request or has ended; then admits them.

    The batches of a wave then depend on the content of its requests and not on their time of
    arrival. For the same reason, the engine releases the rows of ended episodes only between two
    waves.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._held: dict[str, Request | None] = {}
        """Announced episodes that have not ended, in order, each with its request or None."""
        self._ended: list[str] = []
        self._since = time.monotonic()
        """Time of the last announcement, request or end."""

    def announce(self, sessions: Sequence[str]) -> None:
        """Announce episodes, in the order of their admission."""
        for session in sessions:
            self._held.setdefault(session, None)
        self.touch()

    def end(self, session: str) -> None:
        """Remove an episode that is over."""
        if session in self._held:
            del self._held[session]
            self._ended.append(session)
        self.touch()

    def hold(self, request: Request) -> None:
        """Keep a request for the next wave.

        Raises:
            ValueError: the episode was not announced, or already has a request.
        """
        session = request.session
        if session is None or session not in self._held:
            raise ValueError(
                f"session {session!r} was not announced: with deterministic=True call "
                "begin(sessions) first, with every episode in order"
            )
        if self._held[session] is not None:
            raise ValueError(
                f"session {session!r} has two requests at once: with deterministic=True "
                "an episode has one request at a time"
            )
        self._held[session] = request
        self.touch()

    def cancel(self, request: Request) -> None:
        """Drop a cancelled request. Unknown requests are ignored."""
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
        """Whether there are announced episodes, and each of them has a request."""
        return bool(self._held) and None not in self._held.values()

    def take_wave(self) -> list[Request]:
        """Remove and return all held requests, in order. Empty if an episode has no request yet."""
        return self.abandon() if self.is_complete else []

    def abandon(self) -> list[Request]:
        """Remove and return the held requests, in order."""
        held = [request for request in self._held.values() if request is not None]
        self._held = dict.fromkeys(self._held)
        return held

    def touch(self) -> None:
        """Start the deadline of :meth:`check` anew."""
        self._since = time.monotonic()

    def remaining_s(self) -> float | None:
        """Seconds until :meth:`check` fails, or None if no request is held."""
        if not any(self._held.values()):
            return None
        return max(0.0, self._since + self._deadline_s - time.monotonic())

    def check(self) -> None:
        """Raise PolicyFailure if held requests waited for other episodes until the deadline."""
        if self.remaining_s() == 0.0:
            missing = [session for session, request in self._held.items() if request is None]
            raise PolicyFailure(
                f"waited {self._deadline_s:g} s for {len(missing)} episodes without a request: "
                f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}; call end(session) "
                "for an episode that is over",
                retryable=False,
            )

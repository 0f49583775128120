"""Where the seconds of a run went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Ledger:
    """Wall-clock seconds by part of the loop; parts follow one another and never overlap."""

    def __init__(self) -> None:
        self._step: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds of the block under ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._step[name] = self._step.get(name, 0.0) + time.perf_counter() - started

    def take(self) -> dict[str, float]:
        """Seconds since the last call, as ``time/NAME``."""
        taken = {f"time/{name}": seconds for name, seconds in self._step.items()}
        self._step = {}
        return taken

"""What a run's services count, as metrics: how the sandbox fared."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tools.sandbox import Health, SandboxFailure

logger = logging.getLogger(__name__)


@runtime_checkable
class Measured(Protocol):
    """A service that runs programs and counts what became of them."""

    async def health(self) -> Health:
        """Its counters and gauges."""
        ...


class ServiceMeter:
    """Reads what services counted since they were read last.

    Args:
        services: by name; those that count nothing are passed over.
    """

    def __init__(self, services: Mapping[str, Any]) -> None:
        self._measured = {n: s for n, s in services.items() if isinstance(s, Measured)}
        self._before: dict[str, Health] = {}

    async def take(self) -> dict[str, float]:
        """Counts since the last call, gauges as they are, under ``SERVICE/...``.

        A service that does not tell is left out: its numbers are no part of the learning.
        """
        metrics: dict[str, float] = {}
        for name, service in self._measured.items():
            try:
                now = await service.health()
            except SandboxFailure as error:
                logger.warning("no metrics of the %s: %s", name, error)
                continue
            since = now.since(self._before[name]) if name in self._before else now
            self._before[name] = now
            numbers = since.metrics()
            metrics |= {f"{name}/{key}": float(value) for key, value in numbers.items()}
        return metrics

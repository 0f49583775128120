"""Metrics of a run's services, such as the sandbox."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tools.sandbox import Health, SandboxFailure

logger = logging.getLogger(__name__)


@runtime_checkable
class Measured(Protocol):
    """A service with counters and gauges."""

    async def health(self) -> Health:
        """The counters and gauges."""
        ...


class ServiceMetrics:
    """Reads the counters of services, and reports the changes since the last reading.

    Args:
        services: services by name. Services without counters are ignored.
    """

    def __init__(self, services: Mapping[str, Any]) -> None:
        self._measured = {n: s for n, s in services.items() if isinstance(s, Measured)}
        self._before: dict[str, Health] = {}

    async def take(self) -> dict[str, float]:
        """Changes of counters since the last call, and current gauges, under ``SERVICE/...``.

        A service that fails is omitted, because learning does not depend on its metrics.
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

"""Metrics of a run's services, such as the sandbox."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from tools.sandbox import Health, SandboxFailure
from tools.sandbox.health import total_of

logger = logging.getLogger(__name__)

Elsewhere = Callable[[], Awaitable[Mapping[tuple[str, str], Health]]]
"""Returns the counters of services in other processes, by the process's and the service's name. A
process that was started again has another name."""


@runtime_checkable
class Measured(Protocol):
    """A service with counters and gauges."""

    async def health(self) -> Health:
        """The counters and gauges."""
        ...


async def healths_of(services: Mapping[str, Any]) -> dict[str, Health]:
    """The counters of services, by name. Services without counters, or that fail, are left out."""
    found = {}
    for name, service in services.items():
        if isinstance(service, Measured):
            try:
                found[name] = await service.health()
            except SandboxFailure as error:
                logger.warning("no metrics of the %s: %s", name, error)
    return found


class ServiceMetrics:
    """Reads the counters of services, and reports the changes since the last reading.

    Args:
        services: services by name. Services without counters are ignored.
        elsewhere: reads the counters of the same services in other processes, if there are some.
    """

    def __init__(self, services: Mapping[str, Any], elsewhere: Elsewhere | None = None) -> None:
        self._services = services
        self._elsewhere = elsewhere
        self._before: dict[tuple[str, str], Health] = {}

    async def take(self) -> dict[str, float]:
        """Changes of counters since the last call, and current gauges, under ``SERVICE/...``.

        A service that fails is omitted, because learning does not depend on its metrics.
        """
        now = {("", name): health for name, health in (await healths_of(self._services)).items()}
        if self._elsewhere is not None:
            now |= await self._elsewhere()
        changes: dict[str, list[Health]] = {}
        for key, health in now.items():
            since = health.since(self._before[key]) if key in self._before else health
            changes.setdefault(key[1], []).append(since)
        self._before |= now
        return {
            f"{name}/{key}": float(value)
            for name, healths in changes.items()
            for key, value in total_of(healths).metrics().items()
        }

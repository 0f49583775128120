"""How well services isolate the programs of a model; runs refuse services without isolation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from rl.errors import UsageError
from rl.settings.run import RunConfig


@runtime_checkable
class Confining(Protocol):
    """A service that runs programs and reports how well they are isolated from this machine."""

    @property
    def backend(self) -> str:
        """The backend that confines the programs."""
        ...

    @property
    def isolation(self) -> str:
        """The strength of the isolation; "none" if there is none."""
        ...


def check_isolation(
    config: RunConfig, services: Mapping[str, Any], report: Callable[[str], None]
) -> None:
    """Report the isolation of services. Refuse to run a model's programs without isolation.

    Raises:
        UsageError: a service has no isolation, and ``allow_unsafe`` is false.
    """
    for name, service in services.items():
        if not isinstance(service, Confining):
            continue
        report(f"{name}: {service.backend}, isolation {service.isolation}")
        if service.isolation == "none" and not config.allow_unsafe:
            raise UsageError(
                f"{name} ({service.backend}) would run a model's programs with no isolation: "
                f"choose another backend, or give allow_unsafe=true"
            )

"""Shared services of episodes: a sandbox, a retriever, a judge.

A trainer opens an environment class's services once and passes them to every episode. An
environment without passed services opens its own at first use. The environment and its copies
(``fork``, ``group``) share these services. The last of them to close closes the services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServiceOpener:
    """Opens the services of an environment to which the caller passed none."""

    owner: str
    """The environment class's name, for messages."""
    open: Callable[[], AbstractAsyncContextManager[Mapping[str, Any]]]
    """Opens the services; leaving the context closes them."""


class _OpenedServices:
    """Services that an environment opened itself, and the number of its copies that hold them."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.services: Mapping[str, Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.lock: asyncio.Lock | None = None
        self.holders = 1


class ServiceLease:
    """One environment's claim on its services.

    Args:
        opener: opens services if ``injected`` is None.
        injected: services that the caller opened and will close, or None.
    """

    def __init__(self, opener: ServiceOpener, injected: Mapping[str, Any] | None) -> None:
        self._opener = opener
        self._injected = injected
        self._own = _OpenedServices()
        self._closed = False

    @property
    def opened(self) -> bool:
        """Whether this lease opened services that must be closed."""
        return self._own.services is not None and not self._closed

    @property
    def injected(self) -> Mapping[str, Any] | None:
        """The services that the caller opened, or None."""
        return self._injected

    async def get(self) -> Mapping[str, Any]:
        """The services. The first call opens them, on the running event loop.

        Raises:
            RuntimeError: the services were opened on another loop, or the lease is closed.
        """
        if self._injected is not None:
            return self._injected
        if self._closed:
            raise RuntimeError(f"{self._opener.owner} is closed: make a new one")
        own = self._own
        loop = asyncio.get_running_loop()
        if own.loop is None:
            own.loop, own.lock = loop, asyncio.Lock()
        if own.loop is not loop or own.lock is None:
            raise RuntimeError(
                f"{self._opener.owner} was used on another event loop before: make a new "
                f"environment here, or use only its synchronous or only its asynchronous methods"
            )
        async with own.lock:
            if own.services is None:
                own.services = await own.stack.enter_async_context(self._opener.open())
        return own.services

    def share(self) -> ServiceLease:
        """A second claim on the same services."""
        twin = ServiceLease(self._opener, self._injected)
        twin._own = self._own
        self._own.holders += 1
        return twin

    async def close(self) -> None:
        """Release the claim. The last release closes the services. Closing twice is harmless.

        Raises:
            RuntimeError: the services were opened on another loop; only that loop can close them.
        """
        own = self._own
        if self.opened and own.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                f"{self._opener.owner}'s services were opened on another event loop: await "
                f"aclose() there"
            )
        self.release()
        if own.holders == 0:
            await own.stack.aclose()

    def release(self) -> None:
        """Release the claim of a lease that opened no services; nothing is closed."""
        if not self._closed:
            self._closed = True
            self._own.holders -= 1

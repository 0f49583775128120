"""Who owns what episodes share: a sandbox, a retriever, a judge.

A trainer opens an environment class's services once and hands them to every episode. An
environment used on its own opens them when it first needs them; copies of it (``fork``, ``group``)
share the lease, and the last one to close gives it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.env import EnvOptions, TextEnv


class _Opened:
    """Services opened by an environment itself, and how many copies of it hold them."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.services: Mapping[str, Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.lock: asyncio.Lock | None = None
        self.holders = 1


class ServiceLease:
    """One environment's claim on its services.

    Args:
        env_type: whose ``open_services`` is called when nothing was injected.
        options: the environment's options.
        injected: services that somebody else opened and will close, or None.
    """

    def __init__(
        self,
        env_type: type[TextEnv[Any, Any]],
        options: EnvOptions,
        injected: Mapping[str, Any] | None,
    ) -> None:
        self._env_type = env_type
        self._options = options
        self._injected = injected
        self._own = _Opened()
        self._closed = False

    @property
    def opened(self) -> bool:
        """Whether this lease opened services that must be given back."""
        return self._own.services is not None and not self._closed

    @property
    def injected(self) -> Mapping[str, Any] | None:
        """What somebody else opened, or None."""
        return self._injected

    async def get(self) -> Mapping[str, Any]:
        """The services, opened on this loop at the first call.

        Raises:
            RuntimeError: they were opened on another loop: an environment lives on one.
        """
        if self._injected is not None:
            return self._injected
        if self._closed:
            raise RuntimeError(f"{self._env_type.__name__} is closed: make a new one")
        own = self._own
        loop = asyncio.get_running_loop()
        if own.loop is None:
            own.loop, own.lock = loop, asyncio.Lock()
        if own.loop is not loop or own.lock is None:
            raise RuntimeError(
                f"{self._env_type.__name__} was used on another event loop before: make a new "
                f"environment here, or use only one of its two faces"
            )
        async with own.lock:
            if own.services is None:
                context = self._env_type.open_services(self._options)
                own.services = await own.stack.enter_async_context(context)
        return own.services

    def share(self) -> ServiceLease:
        """A second claim on the same services."""
        twin = ServiceLease(self._env_type, self._options, self._injected)
        twin._own = self._own
        self._own.holders += 1
        return twin

    async def close(self) -> None:
        """Give the claim up; the last one closes what was opened. Closing twice is harmless.

        Raises:
            RuntimeError: the services were opened on another loop, which has to close them.
        """
        own = self._own
        if self.opened and own.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                f"{self._env_type.__name__}'s services were opened on another event loop: await "
                f"aclose() there"
            )
        self.forgo()
        if own.holders == 0:
            await own.stack.aclose()

    def forgo(self) -> None:
        """Give the claim up where nothing was opened, so that nothing has to be closed."""
        if not self._closed:
            self._closed = True
            self._own.holders -= 1

"""The owner of a service call. Shared services serve their owners in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_owner: ContextVar[Hashable | None] = ContextVar("owner", default=None)


@contextmanager
def acting_for(owner: Hashable) -> Iterator[None]:
    """Set the owner, an episode's name, of calls in the context and in tasks created there."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def current_owner() -> Hashable:
    """The owner of calls. Outside ``acting_for``, each task is its own owner."""
    owner = _owner.get()
    return asyncio.current_task() if owner is None else owner

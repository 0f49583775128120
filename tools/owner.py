"""The owner of a service call, such as an episode. A shared service serves owners in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_owner: ContextVar[Hashable | None] = ContextVar("owner", default=None)


@contextmanager
def acting_for(owner: Hashable) -> Iterator[None]:
    """Set the owner of calls that are made in this context and in tasks created in it."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def current_owner() -> Hashable:
    """The owner that ``acting_for`` set. Outside ``acting_for``, the current task is the owner."""
    owner = _owner.get()
    return asyncio.current_task() if owner is None else owner

"""On whose behalf a service is called: what many share serves its owners in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_owner: ContextVar[Hashable | None] = ContextVar("owner", default=None)


@contextmanager
def acting_for(owner: Hashable) -> Iterator[None]:
    """Calls made inside, and by tasks that are made inside, are ``owner``'s: an episode's name."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def current_owner() -> Hashable:
    """Who calls; where nobody said so, each task is an owner of its own."""
    owner = _owner.get()
    return asyncio.current_task() if owner is None else owner

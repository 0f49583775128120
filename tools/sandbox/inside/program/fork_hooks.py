"""Defers the fork hooks of preloaded modules until a program starts.

Each run takes two forks, and the hook of ``random`` alone would create a new generator state in
each. Instead, the program's process does the hooks' necessary work once, and then registers the
hooks.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

_held: list[dict[str, Callable[[], object]]] = []


def hold(hooks: list[dict[str, Callable[[], object]]]) -> None:
    """Store the arguments of deferred calls of ``os.register_at_fork`` for ``release``."""
    _held.extend(hooks)


def release() -> None:
    """Register the deferred hooks and do their work for this forked process.

    No lock was held and no other thread ran at the fork. Therefore only the main thread needs its
    new id, and ``random`` a new seed.
    """
    for hooks in _held:
        os.register_at_fork(**hooks)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    random.seed()

"""What modules want done around a fork, kept from the forks that make wardens and programs.

Two such forks make a run, and a hook of ``random`` alone would cost each a new state of its
generator. The program's own process does what is due there, and has the hooks like any other
interpreter from then on.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

_held: list[dict[str, Callable[[], object]]] = []


def hold(hooks: list[dict[str, Callable[[], object]]]) -> None:
    """Keep the arguments of calls of ``os.register_at_fork`` that were not made."""
    _held.extend(hooks)


def release() -> None:
    """Register what was kept, and do what is due in a process that was forked from an idle one.

    Of the hooks of preloaded modules that is: no lock was held and no thread ran, so the main
    thread has a new number, and random numbers must differ.
    """
    for hooks in _held:
        os.register_at_fork(**hooks)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    random.seed()

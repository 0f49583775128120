"""What modules want done around a fork, kept from the forks that make wardens.

A hook of ``random`` alone would cost each of them a new state of its generator. The program's own
process does what they want once, and has them like any other interpreter from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_held: list[dict[str, Callable[[], object]]] = []


def hold(hooks: list[dict[str, Callable[[], object]]]) -> None:
    """Keep the arguments of calls of ``os.register_at_fork`` that were not made."""
    _held.extend(hooks)


def release() -> None:
    """Register what was kept, and do what is due in a forked process."""
    for hooks in _held:
        os.register_at_fork(**hooks)
        if "after_in_child" in hooks:
            hooks["after_in_child"]()

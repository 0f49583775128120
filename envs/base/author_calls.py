"""Calls an environment's ``begin`` and ``turn`` on an event loop.

A function that is not async runs in a thread if the environment declares that its functions block.
Otherwise it runs on the loop; :mod:`envs.base.loop_watch` names it if it blocks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from tools.threads import in_thread

A = TypeVar("A")
T = TypeVar("T")


def call(method: Callable[[A], T | Awaitable[T]], argument: A, blocking: bool) -> T | Awaitable[T]:
    """Call an environment's function on an event loop and return its result or an awaitable.

    Args:
        method: ``begin`` or ``turn``, either plain or ``async``.
        argument: the only argument of ``method``.
        blocking: whether a plain function runs in a thread.
    """
    if blocking and not inspect.iscoroutinefunction(method):
        plain = cast(Callable[[A], T], method)
        return in_thread(functools.partial(plain, argument))
    return method(argument)

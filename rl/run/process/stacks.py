"""Positions of threads and tasks: file, line and function."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PLUMBING = (
    "threading.py",
    "queue.py",
    "thread.py",
    "selectors.py",
    "base_events.py",
    "runners.py",
)
"""Files whose frames do not show what a thread does. The frames of their callers show it."""
_IDLE = ("_worker", "_shutdown")
"""Functions in which a pool's thread waits for work, or the main thread waits for other threads."""


def stacks_of_threads() -> list[str]:
    """A line for each working thread that keeps the process alive, with its name and position."""
    frames = sys._current_frames()
    keeping = [t for t in threading.enumerate() if not t.daemon and t.ident in frames]
    working = [(thread.name, frames[thread.ident or 0]) for thread in keeping]
    return [f"thread {name} at {_position(frame)}" for name, frame in working if not _idle(frame)]


def awaited_by(tasks: Iterable[asyncio.Task[Any]], depth: int = 100) -> list[str]:
    """A line for each unfinished task, with its coroutine and the innermost coroutines it awaits.

    Args:
        tasks: the tasks.
        depth: number of innermost coroutines to name besides the outermost.
    """
    return [f"task {_chain(task, depth)}" for task in tasks if not task.done()]


def position_of(ident: int) -> str:
    """The position of the thread with this identifier."""
    frame = sys._current_frames().get(ident)
    return _position(frame) if frame is not None else "its end"


def stack_report(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all threads, and what each task of the loop awaits."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}:\n{stack}")
    try:
        tasks = awaited_by(asyncio.all_tasks(loop))
    except RuntimeError as error:
        # The running loop changed its set of tasks.
        tasks = [f"tasks could not be listed: {error}"]
    return "\n".join([*parts, *tasks]) + "\n"


def _chain(task: asyncio.Task[Any], depth: int) -> str:
    positions = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            positions.append(_line(frame.f_code, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    named = positions[:1] + positions[1:][-depth:]
    return " > ".join(named) or task.get_name()


def _position(frame: FrameType) -> str:
    """The innermost frame that is not of asyncio or the thread machinery."""
    outer: FrameType | None = frame
    while outer is not None and Path(outer.f_code.co_filename).name in _PLUMBING:
        outer = outer.f_back
    found = outer or frame
    return _line(found.f_code, found.f_lineno)


def _idle(frame: FrameType) -> bool:
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_name in ("wait", "_wait_for_tstate_lock"):
        inner = inner.f_back
    return inner is not None and inner.f_code.co_name in _IDLE


def _line(code: CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line} in {code.co_qualname}"

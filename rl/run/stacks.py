"""Where threads and tasks stand, in words: file, line and function."""

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
"""Files that say nothing of what a thread does."""
_IDLE = ("_worker", "_shutdown")
"""Functions in which a thread of a pool waits for work, and the main thread for the others."""


def stacks_of_threads() -> list[str]:
    """A line for each thread that keeps the process and does something: what, and where."""
    frames = sys._current_frames()
    keeping = [t for t in threading.enumerate() if not t.daemon and t.ident in frames]
    places = [(thread.name, frames[thread.ident or 0]) for thread in keeping]
    return [f"thread {name} at {_place(frame)}" for name, frame in places if not _idle(frame)]


def awaited_by(tasks: Iterable[asyncio.Task[Any]], depth: int = 100) -> list[str]:
    """A line for each task that is not done: its coroutine, and the innermost that it awaits.

    Args:
        tasks: which.
        depth: so many of the innermost are named beside the outermost.
    """
    return [f"task {_chain(task, depth)}" for task in tasks if not task.done()]


def place_of(ident: int) -> str:
    """Where the thread of this number stands."""
    frame = sys._current_frames().get(ident)
    return _place(frame) if frame is not None else "its end"


def report(loop: asyncio.AbstractEventLoop) -> str:
    """All threads with their stacks, and all tasks of the loop with what they await."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}:\n{stack}")
    try:
        tasks = awaited_by(asyncio.all_tasks(loop))
    except RuntimeError as error:
        # The loop goes on meanwhile, and its set of tasks with it.
        tasks = [f"tasks could not be listed: {error}"]
    return "\n".join([*parts, *tasks]) + "\n"


def _chain(task: asyncio.Task[Any], depth: int) -> str:
    places = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            places.append(_line(frame.f_code, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    told = places[:1] + places[1:][-depth:]
    return " > ".join(told) or task.get_name()


def _place(frame: FrameType) -> str:
    """The innermost place that says something."""
    place: FrameType | None = frame
    while place is not None and Path(place.f_code.co_filename).name in _PLUMBING:
        place = place.f_back
    said = place or frame
    return _line(said.f_code, said.f_lineno)


def _idle(frame: FrameType) -> bool:
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_name in ("wait", "_wait_for_tstate_lock"):
        inner = inner.f_back
    return inner is not None and inner.f_code.co_name in _IDLE


def _line(code: CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line} in {code.co_qualname}"

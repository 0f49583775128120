"""Watches event loops: which code holds a loop, for how long, and at which line.

While code runs on a loop without awaiting, no other episode goes on. A thread asks each watched
loop for a sign of life. If the loop is late, the thread reads the stack of the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat, starmap, takewhile
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

logger = logging.getLogger(__name__)
TICK_S, FINE_TICK_S = 0.05, 0.02
"""Seconds in which a loop must give a sign of life, and between two looks at a loop that is held.
"""
HELD_S, WINDOW_S = 1.0, 5.0
"""Code that held a loop for more than ``HELD_S`` of the last ``WINDOW_S`` seconds is named."""
_UNUSED_S = 60.0
"""The thread ends after this many seconds in which no environment was called."""
_HOME = Path(__file__).resolve().parents[2]
_OWN = tuple(f"{_HOME / name}{os.sep}" for name in ("tools", "envs", "agents", "rl"))
_ENVIRONMENT = str(_HOME / "envs" / "env.py")
"""The file whose functions call an environment's ``begin`` and ``turn``."""
_TOOL = str(_HOME / "tools" / "function.py")
_STDLIB = f"{Path(os.__file__).resolve().parent}{os.sep}"
_USERS, _INSTALLED, _TURNWISES, _PYTHONS = range(4)
"""Authors of code."""
_RUN_HANDLE = asyncio.Handle._run.__code__


class Account(Protocol):
    """Receives the seconds for which code of its episode held the loop."""

    def held(self, seconds: float) -> None:
        """Count seconds. Another thread than the loop's calls it while the loop is held."""
        ...


held_account: ContextVar[Account | None] = ContextVar("held_account", default=None)
"""The account of the episode that a task plays."""


class LoopWatch:
    """A thread that watches the running event loop.

    Args:
        loop: the loop of the calling thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.used_at = time.monotonic()
        """Time of the last call of an environment."""
        self.last = ""
        """File, line and function of the code that held the loop last."""
        self._ident = threading.get_ident()
        self._counted_at = self.used_at
        self._asked = False
        self._recent: deque[_Hold] = deque()
        """The holds of the last ``WINDOW_S``."""
        self._named: set[CodeType] = set()
        self.over = False
        """Whether the thread has ended."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="turnwise-watch", daemon=True)
        _live.add(self)
        self._thread.start()

    def end(self) -> None:
        """End the thread, and wait for its end. The next call of an environment starts another."""
        self.over = True
        self._end.set()
        self._thread.join()

    def _answer(self) -> None:
        """The sign of life. Called on the loop."""
        self._asked = False

    def _watch(self) -> None:
        try:
            self._watch_on()
        finally:
            self.over = True
            _live.discard(self)

    def _watch_on(self) -> None:
        while self.loop.is_running() and not self._end.is_set():
            now = time.monotonic()
            if not self._asked:
                if now - self.used_at > _UNUSED_S:
                    return
                # A loop that does not answer at once was held already, for half a tick on average.
                self._asked, self._counted_at = True, now - TICK_S / 2
                try:
                    self.loop.call_soon_threadsafe(self._answer)
                except RuntimeError:
                    return  # The loop was closed.
                self._end.wait(TICK_S)
            else:
                self._count(now)
                self._end.wait(FINE_TICK_S)

    def _count(self, now: float) -> None:
        """Count the seconds since the last call for the code that holds the loop."""
        seconds, self._counted_at = now - self._counted_at, now
        account, frames = _holding(_stack(self._ident))
        if account is not None:
            account.held(seconds)
        if not frames:
            return
        author = min(_author(frame) for frame in frames)
        written = [frame for frame in frames if _author(frame) == author]
        self.last = _position(written[0])
        # An import holds the loop only once, and rl.rollout.context names a slow constructor.
        imports = any(frame.f_code.co_filename.startswith("<frozen") for frame in frames)
        if not imports and written[-1].f_code.co_name != "__init__":
            hold = _Hold(now, seconds, written[-1].f_code, self.last, _remedy(frames))
            self._recent.append(hold)
            self._name(hold)

    def _name(self, last: _Hold) -> None:
        """Log where the function of ``last`` holds the loop, once, if it does so for long."""
        while self._recent[0].at < last.at - WINDOW_S:
            self._recent.popleft()
        seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        for hold in self._recent:
            if hold.entry is last.entry:
                seconds[hold.position, hold.remedy] += hold.seconds
        total = sum(seconds.values())
        if total <= HELD_S or last.entry in self._named:
            return
        self._named.add(last.entry)
        position, remedy = max(seconds, key=lambda place: seconds[place])
        logger.warning(
            "%s held the event loop, and all other episodes, for %.1f of the last %g s: %s",
            *(position, total, WINDOW_S, remedy),
        )


@dataclass(frozen=True, slots=True)
class _Hold:
    """A time in which code held the loop."""

    at: float
    seconds: float
    entry: CodeType
    """The author's outermost function."""
    position: str
    """The author's innermost line."""
    remedy: str


_live: set[LoopWatch] = set()
"""The watches whose threads have not ended."""


@contextlib.contextmanager
def watches_ended() -> Iterator[None]:
    """A context that ends, when it is left, the watches that started in it."""
    before = set(_live)
    try:
        yield
    finally:
        for watch in _live - before:
            watch.end()


class _Watched(threading.local):
    watch: LoopWatch | None = None


_watched = _Watched()


def watch_loop() -> LoopWatch:
    """The watch of the running loop, which is started if necessary."""
    watch, loop = _watched.watch, asyncio.get_running_loop()
    if watch is None or watch.loop is not loop or watch.over:
        watch = _watched.watch = LoopWatch(loop)
    watch.used_at = time.monotonic()
    return watch


def _forget() -> None:
    """Start a new watch in a child process, which does not inherit the thread."""
    _watched.watch = None
    _live.clear()


os.register_at_fork(after_in_child=_forget)


def _stack(ident: int) -> list[FrameType]:
    """The frames of a thread, the innermost first.

    One call into C reads all of them, so that the thread cannot go on in between. A loop in Python
    lets it go on, and so does a garbage collection that runs finalizers: then, in CPython 3.11,
    ``f_back`` returned objects that were no frames.
    """
    innermost = map(itemgetter(ident), starmap(sys._current_frames, [()]))
    frames: list[FrameType | None] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        frames.extend(accumulate(chain(innermost, repeat("f_back")), getattr))
    except (AttributeError, KeyError):
        pass  # Behind the outermost frame is None, which has no frame behind it.
    finally:
        if collects:
            gc.enable()
    return [frame for frame in frames if frame is not None]


def _holding(stack: Sequence[FrameType]) -> tuple[Account | None, list[FrameType]]:
    """What the loop of a thread does, by the thread's stack.

    Returns:
        The account of the running callback, and the frames of an episode's code, the innermost
        first; None and no frames if the loop waits.
    """
    frames = list(takewhile(lambda frame: frame.f_code is not _RUN_HANDLE, stack))
    if len(frames) == len(stack):
        return None, []  # It waits for events, or for a processor after the wait.
    frame = stack[len(frames)]
    context: Context | None = getattr(frame.f_locals.get("self"), "_context", None)
    account = None if context is None else context.get(held_account)
    calls = [n for n, frame in enumerate(frames) if frame.f_code.co_filename == _ENVIRONMENT]
    if calls:
        return account, frames[: calls[-1]]
    if account is None:
        return None, []
    return account, [frame for frame in frames if _author(frame) == _USERS]


def _remedy(frames: list[FrameType]) -> str:
    """How the function with these frames can leave the loop free."""
    for called, caller in pairwise(frames):
        if caller.f_code.co_filename == _TOOL and not called.f_code.co_flags & inspect.CO_COROUTINE:
            return "make it async and await there, or give the tool blocking=True"
    if any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames):
        return "await there, and call blocking code by asyncio.to_thread"
    return "make it async and await there, or set blocking = True in the environment's class"


def _position(frame: FrameType) -> str:
    """File, line and function of a frame."""
    path = Path(frame.f_code.co_filename)
    with contextlib.suppress(OSError, ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _author(frame: FrameType) -> int:
    """The author of the code of a frame."""
    file = frame.f_code.co_filename
    if file.startswith(_OWN):
        return _TURNWISES
    if "site-packages" in file or "dist-packages" in file:
        return _INSTALLED
    return _PYTHONS if file.startswith((_STDLIB, "<frozen")) else _USERS

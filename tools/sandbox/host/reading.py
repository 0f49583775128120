"""Decodes answers of untrusted processes within bounds of time and memory.

Long answers are decoded in a thread, outside the event loop.
"""

from __future__ import annotations

import asyncio
import json
import json.scanner
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from tools.sandbox.inside import codec

MAX_VALUES = 50_000
"""Maximum number of values in one answer, including nested ones."""
_SHORT = 1 << 13
"""Maximum number of bytes that the event loop's thread decodes. For so few bytes, decoding is
faster than passing them to another thread."""
_LEASE_S = 0.5
"""Seconds by which the host extends a program's deadline in advance while it decodes an answer."""
_NOTHING_S = 0.02
"""Minimum extension of a program's deadline, in seconds. Shorter extensions are sent later."""
_KEPT = 32 << 20
"""Approximate maximum number of bytes of memory for the returned values of one grade."""
_KEPT_CONTAINERS = 1 << 14
"""Maximum number of JSON lists that do not encode numbers, in all values of one grade. Most
containers are encoded as two lists. Python's garbage collector stops every thread while it visits
containers."""
_WEIGHT_OF_LIST = 128
"""Approximate number of bytes of memory that a value takes for each JSON list that encodes it."""
_WEIGHT_OF_QUOTE = 64
"""Approximate number of bytes of memory for each quotation mark: half of a short text."""
_WIDEST = 4
"""Number of bytes of each character in a text that has an emoji."""
_LISTS_AT_ONCE = 4096
"""Maximum number of lists in a frame that the decoder in C decodes. No other thread can run
meanwhile."""


class _InSlices(json.JSONDecoder):
    """JSON decoder in Python. Five times slower than the one in C, but other threads can run."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_read_in_slices = _InSlices().raw_decode

T = TypeVar("T")


def num_lists(body: bytes, most: int = MAX_VALUES) -> int:
    """Number of JSON lists in a frame.

    Decoding a list takes a thousand times as long as decoding a character.

    Raises:
        CodecError: the frame has more lists, items or texts than ``most`` values need.
    """
    # A value has one or two lists, and as many texts. Backslashes may hide half of the quotes.
    quotes = body.count(b'"') - body.count(b'\\"')
    lists, items = body.count(b"[") + body.count(b"{"), body.count(b",")
    # Values without a list or a text are decoded fast, so more of them do no harm.
    if quotes <= 4 * most and (lists > 2 * most or items > 10 * most):
        bare = _without_texts(body)
        lists, items = bare.count(b"[") + bare.count(b"{"), bare.count(b",")
    if quotes > 4 * most or lists > 2 * most or items > 10 * most:
        raise codec.CodecError(f"more than {most} values at once")
    return lists


def _without_texts(body: bytes) -> bytes:
    return b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def unpack(body: bytes) -> Any:
    """Decode the message in a frame.

    Raises:
        CodecError: the frame is malformed or has too many values.
    """
    if len(body) <= _LISTS_AT_ONCE or num_lists(body) <= _LISTS_AT_ONCE:
        return codec.unpack(body)
    return codec.unpack(body, _read_in_slices)


def size_of(body: bytes) -> Size:
    """The size of a frame.

    Raises:
        CodecError: the frame has too many values.
    """
    lists = num_lists(body)
    numbers = body.count(b'["i","') + body.count(b'["f","')
    quotes = max(0, body.count(b'"') - body.count(b'\\"') - 4 * numbers)
    wide = b"\\u" in body or not body.isascii()
    return Size(len(body) * (_WIDEST if wide else 1), lists, lists - numbers, quotes)


class Size(NamedTuple):
    """Upper bounds of what decoding a frame takes."""

    num_bytes: int
    """Maximum number of bytes that the frame's characters take in memory."""
    lists: int
    """Number of JSON lists. A number is encoded as a list as well."""
    containers: int
    """Number of JSON lists that do not encode numbers. Most containers are encoded as two lists."""
    quotes: int = 0
    """Number of quotation marks outside of numbers. Most texts take two."""


class Clock:
    """Extends a program's deadline by the time that the host itself uses during the run."""

    def __init__(self) -> None:
        self._give: Callable[[float], None] | None = None
        self._owed = 0.0
        self._given = 0.0

    def bind(self, give: Callable[[float], None] | None) -> None:
        """Set the function that extends the program's deadline, or None after the run has ended."""
        self._give = give

    def charge(self, seconds: float, ahead: float = 0.0) -> None:
        """Record ``seconds`` of the host's time, and grant ``ahead`` seconds in advance."""
        self._owed += seconds
        missing = self._owed + ahead - self._given
        if missing > _NOTHING_S and self._give is not None:
            self._given += missing
            self._give(missing)


class Reader:
    """Decodes long answers, one at a time, in a thread, so that the event loop continues."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-reader")
        self._closed = False

    async def read(self, size: int, act: Callable[[], T], clock: Clock) -> T:
        """Call ``act`` and return its result. The time of the call counts as the host's time.

        Args:
            size: number of bytes that ``act`` decodes.
            act: function that decodes an answer. It can run in another thread.
            clock: clock of the program that waits for the host.
        """
        if size <= _SHORT or self._closed:
            return act()
        reading = asyncio.get_running_loop().run_in_executor(self._thread, act)
        try:
            while True:
                before = time.monotonic()
                clock.charge(0.0, ahead=_LEASE_S)
                await asyncio.wait([reading], timeout=_LEASE_S / 2)
                clock.charge(time.monotonic() - before)
                if reading.done():
                    return reading.result()
        finally:
            reading.cancel()

    def close(self) -> None:
        """End the thread after its pending work."""
        self._closed = True
        self._thread.shutdown(wait=False)


class MemoryBudget:
    """Counts the memory for the returned values of one grade.

    Values that do not fit are dropped.
    """

    def __init__(self) -> None:
        self._left = _KEPT
        self._containers_left = _KEPT_CONTAINERS

    def take(self, size: Size) -> bool:
        """Reserve memory for a value of that size.

        Returns whether there is enough to keep the value.
        """
        self._left -= size.num_bytes + _WEIGHT_OF_LIST * size.lists
        self._left -= _WEIGHT_OF_QUOTE * size.quotes
        self._containers_left -= size.containers
        return self._left >= 0 and self._containers_left >= 0

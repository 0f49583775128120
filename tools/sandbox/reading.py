"""Reading what untrusted processes answer: bounded, and beside the event loop."""

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
"""Values in one answer, those inside of others included."""
_SHORT = 1 << 13
"""Bytes that are read at once, in less time than it takes to hand them over."""
_LEASE_S = 0.5
"""Seconds that a program gets ahead while its answer is read."""
_NOTHING_S = 0.02
"""Seconds of the judge's that are not worth a message."""
_KEPT = 32 << 20
"""Bytes of memory, about, that the values of one grade may take."""
_KEPT_CONTAINERS = 1 << 14
"""Lists of the wire, those of numbers not counted, that the values of one grade may have. A
container has two. Python's collector of cycles stops every thread while it looks at each."""
_WEIGHT_OF_LIST = 128
"""Bytes of memory, about, that a list of the wire comes to."""
_LISTS_AT_ONCE = 4096
"""Lists of a frame that the decoder in C reads, which no other thread can interrupt."""


class _InSlices(json.JSONDecoder):
    """Reads JSON by lines of Python, between which other threads go on. Five times as slow."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_read_in_slices = _InSlices().raw_decode

T = TypeVar("T")


def num_lists(body: bytes, most: int = MAX_VALUES) -> int:
    """How many lists a frame has; each takes a thousand times as long to read as a character.

    Raises:
        CodecError: they are more than ``most`` values need.
    """
    # A value has one list or two, and as much text. Backslashes may hide half of the quotes.
    quotes = body.count(b'"') - body.count(b'\\"')
    lists, items = body.count(b"[") + body.count(b"{"), body.count(b",")
    # What has no list and no text is read in a moment, so that more of it is no harm.
    if quotes <= 4 * most and (lists > 2 * most or items > 10 * most):
        bare = _without_texts(body)
        lists, items = bare.count(b"[") + bare.count(b"{"), bare.count(b",")
    if quotes > 4 * most or lists > 2 * most or items > 10 * most:
        raise codec.CodecError(f"more than {most} values at once")
    return lists


def _without_texts(body: bytes) -> bytes:
    return b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def unpack(body: bytes) -> tuple[Any, Size]:
    """The message of a frame, and its size.

    Raises:
        CodecError: it is malformed, or has too many values.
    """
    lists = num_lists(body)
    size = Size(len(body), lists, lists - body.count(b'["i","') - body.count(b'["f","'))
    if lists <= _LISTS_AT_ONCE:
        return codec.unpack(body), size
    return codec.unpack(body, _read_in_slices), size


class Size(NamedTuple):
    """What a frame takes."""

    num_bytes: int
    lists: int
    """Of the wire, where a number is one as well."""
    containers: int
    """Lists that are no numbers: two for most containers of the value."""


class Clock:
    """The judge's own time during a program's run, which the program is not charged."""

    def __init__(self) -> None:
        self._give: Callable[[float], None] | None = None
        self._owed = 0.0
        self._given = 0.0

    def bind(self, give: Callable[[float], None] | None) -> None:
        """What gives the program more seconds, as long as it runs."""
        self._give = give

    def charge(self, seconds: float, ahead: float = 0.0) -> None:
        """The judge took so long, and may go on for ``ahead`` more."""
        self._owed += seconds
        missing = self._owed + ahead - self._given
        if missing > _NOTHING_S and self._give is not None:
            self._given += missing
            self._give(missing)


class Reader:
    """Reads long answers one at a time in a thread, so that a loop goes on meanwhile."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-reader")
        self._closed = False

    async def read(self, size: int, act: Callable[[], T], clock: Clock) -> T:
        """What ``act`` returns; the time until then is the judge's.

        Args:
            size: bytes of what it reads.
            act: must need nothing of the loop's.
            clock: of the program that waits.
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
        """End the thread, once it has read what waits for it."""
        self._closed = True
        self._thread.shutdown(wait=False)


class Room:
    """What the values of one grade may take of the memory; the rest is left out."""

    def __init__(self) -> None:
        self._left = _KEPT
        self._containers_left = _KEPT_CONTAINERS

    def take(self, size: Size) -> bool:
        """Whether a value of that size may stay."""
        self._left -= size.num_bytes + _WEIGHT_OF_LIST * size.lists
        self._containers_left -= size.containers
        return self._left >= 0 and self._containers_left >= 0

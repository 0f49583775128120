"""Encodes values as bytes for a channel whose other end is not trusted.

Only builtin data can be encoded: None, bool, int, float, complex, str, bytes, list, tuple, dict,
set, frozenset. A subclass is encoded as its builtin base, so the sender's ``__eq__`` or
``__hash__`` never reaches the receiver. The format is JSON with tags. Integers and floats are
hexadecimal, so they are exact and encoding takes linear time. A text that JSON would change is
encoded as a list of parts.
"""

from __future__ import annotations

import _socket
import json
import operator
import re
import struct
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 40
MAX_FRAME = 1 << 20
"""Maximum number of bytes of one frame, without its length prefix."""
MAX_SENT = 16 << 20
"""The same for a frame that the host sends."""
_MAX_EQUAL_HASHES = 100
_FEW_KEYS = 4096
"""Maximum number of keys whose hash collisions are not checked, because they cost little time."""
_SLOTS_PER_KEY = 16
"""Maximum number of further slots, on average, that a hash table tries for a key. Fractions and
large powers need 8."""
_WORD = (1 << 64) - 1
_BETWEEN_SURROGATES = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
"""Positions in a text at which JSON would join two lone surrogates into one character."""
# Slots that a table tries one after another, growth of a full table, and the part of it that fills.
_DICT = 1, 2, 2 / 3
_SET = 10, 4, 3 / 5
# Made once: `json.dumps` and `json.loads` do more work in each forked process.
_make_encoder: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
_encode_json = _make_encoder(
    *(None, json.JSONEncoder().default, json.encoder.encode_basestring_ascii),
    *(None, ":", ",", False, False, True),  # indent, separators, sorted, skip keys, allow NaN
)
_decode_json = json.JSONDecoder().raw_decode


def encode_json(message: Any) -> str:
    """``message`` as JSON. The message must not contain itself."""
    return "".join(_encode_json(message, 0))


class CodecError(ValueError):
    """Raised for a value that cannot be encoded, and for bytes that cannot be decoded."""


def encode(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON data.

    Raises:
        CodecError: the value or a nested one is not builtin data, or is nested deeper than
            ``MAX_DEPTH``, for example a list that contains itself.
    """
    if value is None or value is True or value is False:
        return value
    if depth > MAX_DEPTH:
        raise CodecError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        text = str.__str__(value)
        if text.isascii() or not _BETWEEN_SURROGATES.search(text):
            return text
        return ["u", _BETWEEN_SURROGATES.split(text)]
    if isinstance(value, int):
        return ["i", int.__format__(value, "x")]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    for base, tag in _SEQUENCES:
        if isinstance(value, base):
            return [tag, [encode(item, depth + 1) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["d", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in pairs]]
    if isinstance(value, bytes):
        return ["b", bytes.hex(value)]
    if isinstance(value, complex):
        return ["c", [float.hex(value.real), float.hex(value.imag)]]
    raise CodecError(f"a value of type {type(value).__name__} is not builtin data")


_SEQUENCES: tuple[tuple[Any, str], ...] = (
    (list, "l"),
    (tuple, "t"),
    (set, "s"),
    (frozenset, "z"),
)


def decode(data: Any, depth: int = 0) -> Any:
    """The value that ``encode`` turned into ``data``.

    Raises:
        CodecError: ``data`` is malformed, or too many of its keys have equal hashes.
    """
    try:
        return _decode(data, depth)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CodecError(f"malformed value: {error}") from None


def _decode(data: Any, depth: int) -> Any:
    if data is None or isinstance(data, bool | str):
        return data
    if depth > MAX_DEPTH + 1:
        raise CodecError(f"nested deeper than {MAX_DEPTH}")
    if type(data) is not list or len(data) != 2 or type(data[0]) is not str:
        raise CodecError("not a tagged value")
    tag, body = data
    if tag in _DECODE_TEXT and type(body) is str:
        return _DECODE_TEXT[tag](body)
    if type(body) is not list:
        raise CodecError("not a tagged value")
    if tag == "d":
        if any(type(pair) is not list or len(pair) != 2 for pair in body):
            raise CodecError("a dict is pairs")
        keys = _distinct([_decode(pair[0], depth + 1) for pair in body], *_DICT)
        return dict(zip(keys, [_decode(pair[1], depth + 1) for pair in body], strict=True))
    if tag == "c" and len(body) == 2 and all(type(part) is str for part in body):
        return complex(float.fromhex(body[0]), float.fromhex(body[1]))
    if tag == "u":
        return "".join(body)
    items = [_decode(item, depth + 1) for item in body]
    if tag == "l":
        return items
    if tag == "t":
        return tuple(items)
    if tag == "s":
        return set(_distinct(items, *_SET))
    if tag == "z":
        return frozenset(_distinct(items, *_SET))
    raise CodecError(f"unknown tag {tag[:8]!r}")


_DECODE_TEXT: dict[str, Callable[[str], Any]] = {
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "b": bytes.fromhex,
}


def _distinct(keys: list[Any], linear: int, growth: int, load: float) -> list[Any]:
    """Return ``keys`` if a hash table of them is fast to build; otherwise raise CodecError.

    The other parameters describe the hash table; see ``_DICT``.
    """
    hashes = sorted(map(hash, keys))
    if sum(map(operator.eq, hashes, hashes[1:])) > _MAX_EQUAL_HASHES:
        raise CodecError("too many keys have equal hashes")
    if len(keys) > _FEW_KEYS and hashes[-1] - hashes[0] > len(keys):
        _check_slots([hash(key) for key in keys], linear, growth, load)
    return keys


def _check_slots(hashes: list[int], linear: int, growth: int, load: float) -> None:
    """Simulate CPython's hash tables, in which keys can collide although no two hashes are equal.

    A table tries its slots in a fixed order. If some keys fill a part of this order and other keys
    start in this part, inserting them takes quadratic time. The insertion is a single step of the
    interpreter, so it stops all threads.
    """
    size = 1 << 13
    while True:
        held = hashes[: int(size * load)]
        taken = bytearray(size)
        steps = _SLOTS_PER_KEY * len(held)
        for number in held:
            slot, rest = number & (size - 1), number & _WORD
            while (free := taken.find(0, slot, slot + linear)) < 0:
                rest >>= 5
                slot = (5 * slot + rest + 1) & (size - 1)
                steps -= 1
            taken[free] = 1
            if steps < 0:
                raise CodecError("too many keys collide")
        if len(held) == len(hashes):
            return
        size *= growth


def pack(message: Any, most: int = MAX_FRAME) -> bytes:
    """The frame of a message: four bytes of length, then JSON.

    Raises:
        CodecError: the frame would be larger than ``most`` bytes.
    """
    body = encode_json(message).encode()
    if len(body) > most:
        raise CodecError(f"a value of {len(body)} bytes exceeds {most}")
    return struct.pack("!I", len(body)) + body


def unpack(body: bytes, raw_decode: Callable[[str], tuple[Any, int]] = _decode_json) -> Any:
    """The message of a frame.

    Args:
        body: the frame without its length prefix.
        raw_decode: JSON decoder, as ``json.JSONDecoder.raw_decode``.

    Raises:
        CodecError: the body is not JSON, or is nested too deeply.
    """
    try:
        text = body.decode()
        message, end = raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"malformed frame: {type(error).__name__}") from None
    if end != len(text):
        raise CodecError("malformed frame: more than one message")
    return message


def send_message(channel: _socket.socket, message: Any) -> None:
    """Send one frame on a blocking socket."""
    channel.sendall(pack(message))


def receive_message(channel: _socket.socket) -> Any:
    """Wait for the next message of a blocking socket and return it.

    Raises:
        EOFError: the other end is closed.
    """
    (length,) = struct.unpack("!I", receive_exactly(channel, 4))
    return unpack(receive_exactly(channel, length))


def receive_exactly(channel: _socket.socket, count: int) -> bytes:
    """Wait for ``count`` bytes of a blocking socket and return them.

    Raises:
        EOFError: the other end was closed before all bytes arrived.
    """
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 18))
        if not part:
            raise EOFError("the other end of the channel is closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

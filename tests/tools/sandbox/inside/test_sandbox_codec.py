"""The codec: what can be encoded, and what a hostile sender can do to the receiver."""

from __future__ import annotations

import json
import math
import random
import socket
import threading
import time
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.sandbox.inside.codec import (
    MAX_DEPTH,
    MAX_FRAME,
    CodecError,
    decode,
    encode,
    pack,
    receive_message,
    send_message,
    unpack,
)

EDGES = '\ud800\udbff\udc00\udfff\ud7ff\ue000\U00010000\U0010ffff\\"\0'
texts = st.text(st.characters() | st.sampled_from(EDGES))  # including lone surrogates
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | texts
    | st.binary()
)
keys = st.none() | st.booleans() | st.integers() | texts | st.binary()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


def typed(value):
    """Canonical form in which 1, 1.0 and True differ, as do [1] and (1,), and 0.0 and -0.0."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), {typed(item) for item in value}
    return type(value), repr(value)


@settings(deadline=None)
@given(values)
def test_builtin_data_are_decoded_exactly(value):
    frame = pack(encode(value))
    assert typed(decode(unpack(frame[4:]))) == typed(value)


@settings(deadline=None)
@given(texts)
def test_texts_are_decoded_exactly(text):
    assert decode(unpack(pack(encode(text))[4:])) == text


def test_no_pair_of_code_points_is_joined():
    ends = "\ud800\udbff\udc00\udfff"
    every = "".join(map(chr, range(0x110000)))
    pairs = [first + second for first in ends + "a\U0001f600" for second in ends + "a\U0001f600"]
    for text in (*pairs, every[: 1 << 16], every[-(1 << 16) :], "\ud83d\ude00" * 50):
        assert decode(unpack(pack(encode(text))[4:])) == text
    assert len(set(map(str, map(encode, [*pairs, "\U00010000"])))) == len(pairs) + 1


def test_special_floats_are_decoded_exactly():
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.copysign(1, decode(encode(-0.0))) == -1


def test_the_wire_form_is_json_with_exact_numbers():
    assert json.loads(pack(encode([True, 255, -2, 0.5, ("a", None)]))[4:]) == [
        "l",
        [True, ["i", "ff"], ["i", "-2"], ["f", "0x1.0000000000000p-1"], ["t", ["a", None]]],
    ]


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Liar(4), 4),
        (Level.HIGH, 3),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (namedtuple("P", "x y")(1, 2), (1, 2)),
        (type("S", (str,), {"__eq__": lambda s, o: True})("x"), "x"),
        (type("L", (list,), {"__iter__": lambda s: iter([9])})([1]), [1]),
    ],
)
def test_a_subclass_is_encoded_as_its_base(value, base):
    assert typed(decode(encode(value))) == typed(base)


@pytest.mark.parametrize("value", [object(), range(3), iter([]), print, int, Ellipsis, bytearray()])
def test_other_than_builtin_data_cannot_be_encoded(value):
    with pytest.raises(CodecError, match="not builtin data"):
        encode([value])


def test_depth_and_size_are_bounded():
    nested: object = 0
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert decode(encode(nested)) == nested
    with pytest.raises(CodecError, match="deeper"):
        encode([nested])
    loop: list = []
    loop.append(loop)
    with pytest.raises(CodecError, match="deeper"):
        encode(loop)
    with pytest.raises(CodecError, match="exceeds"):
        pack(encode("x" * MAX_FRAME))


@pytest.mark.parametrize(
    "data",
    [
        0,
        1.5,
        {},
        {"a": 1},
        [],
        ["i"],
        ["i", 3],
        ["i", "zz"],
        ["i", ""],
        ["i", "1", "2"],
        ["f", "x"],
        ["f", "0x1p99999"],
        ["b", "0"],
        ["q", []],
        ["d", [["a"]]],
        ["d", [[["l", []], 1]]],
        ["s", [["l", []]]],
        ["s", [["d", []]]],
        ["c", ["0x0p0"]],
        ["u", [1]],
        ["u", [["u", []]]],
        ["u", "text"],
        [["i", "1"], "1"],
        ["l", "text"],
        ["l", {"0": 1}],
    ],
)
def test_malformed_data_is_refused(data):
    with pytest.raises(CodecError):
        decode(data)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 10_000, b"nan"])
def test_malformed_frames_are_refused(body):
    with pytest.raises(CodecError):
        decode(unpack(body))


def test_colliding_keys_are_refused_at_once():
    modulus = 2**61 - 1  # the hash of an integer is its remainder modulo this
    colliding = encode({k * modulus for k in range(101)})
    assert len(decode(colliding)) == 101
    wire = ["s", [["i", format(k * modulus, "x")] for k in range(20_000)]]
    started = time.thread_time()
    with pytest.raises(CodecError, match="equal hashes"):
        decode(wire)
    with pytest.raises(CodecError, match="equal hashes"):
        decode(["d", [[key, None] for key in wire[1]]])
    # To hash them all takes several times as long; the rest is for a garbage collection.
    assert time.thread_time() - started < 3


def walking(bits, filled, count):
    """Integers with different hashes: the first fill a part of the order in which a table of
    2**bits slots tries them, and the others come to its start."""
    mask = (1 << bits) - 1
    path = [1]
    while len(path) < filled:
        path.append((5 * path[-1] + 1) & mask)
    place = {slot: index for index, slot in enumerate(path)}
    numbers, found = random.Random(0), set()
    while len(found) < count:
        number = numbers.randrange(mask, 1 << 2 * bits)
        slot, rest = number & mask, number
        while slot in place and rest:
            rest >>= 5
            slot = (5 * slot + rest + 1) & mask
        if place.get(slot, filled) < filled / 2:
            found.add(number)
    return [*path, *found]


def test_keys_that_walk_through_the_table_are_refused():
    keys = walking(13, filled=4000, count=1000)
    with pytest.raises(CodecError, match="collide"):
        decode(["d", [[["i", format(key, "x")], None] for key in keys]])


@pytest.mark.parametrize(
    "keys",
    [range(20_000), [n * 4096 for n in range(20_000)], [n / 20_000 for n in range(20_000)]],
    ids=["numbers in a row", "multiples", "fractions"],
)
def test_many_keys_that_spread_are_accepted(keys):
    assert decode(encode(dict.fromkeys(keys))) == dict.fromkeys(keys)
    assert decode(encode(set(keys))) == set(keys)


def test_an_enormous_integer_takes_linear_time():
    started = time.thread_time()
    assert decode(encode(1 << 3_000_000)).bit_length() == 3_000_001
    assert time.thread_time() - started < 0.5


def test_messages_arrive_whole_over_a_socket():
    one, other = socket.socketpair()
    message = ["value", encode(list(range(50_000)))]
    with one, other:
        sender = threading.Thread(target=send_message, args=(one, message))
        sender.start()
        assert receive_message(other) == message
        sender.join()
        one.close()
        with pytest.raises(EOFError):
            receive_message(other)

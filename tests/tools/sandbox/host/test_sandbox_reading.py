"""The cost of hostile answers for the host and for honest neighbours."""

from __future__ import annotations

import asyncio
import time

import pytest

from tools.sandbox import CallTest, Limits, OutcomeKind
from tools.sandbox.host.reading import (
    MAX_VALUES,
    Clock,
    MemoryBudget,
    Reader,
    Size,
    num_lists,
    size_of,
    unpack,
)
from tools.sandbox.inside import codec

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMPTY_SETS = "def f(x): return [set() for _ in range({})]"


@pytest.mark.parametrize(
    "body",
    [
        b'["value",["l",[' + b",".join([b'["s",[]]'] * (MAX_VALUES + 1)) + b"]],1]",
        b"[" + b",".join([b"[]"] * 200_000) + b"]",
        b"[" + b",".join([b"{}"] * 200_000) + b"]",
        b'["value",["l",[' + b",".join([b'""'] * 200_000) + b"]],1]",
        b'["value",["l",[' + b",".join([b'"\\\\"'] * 260_000) + b"]],1]",
        b'["' + b"[" * 500_000 + b'",' + b",".join([b"[]"] * 110_000) + b"]",
    ],
    ids=["sets", "lists", "objects", "texts", "backslashes", "hidden"],
)
async def test_frames_of_too_many_values_are_refused_before_they_are_read(body):
    with pytest.raises(codec.CodecError, match="more than 50000 values"):
        num_lists(body)


@pytest.mark.parametrize(
    "value",
    [
        "[{(" * 170_000,
        '"quoted" \\ "' * 20_000,
        list(range(49_000)),
        ["x"] * 49_000,
        {str(n): [n] for n in range(16_000)},
        [None] * 150_000,
    ],
    ids=["brackets", "quotes", "numbers", "texts", "dict", "nothing"],
)
async def test_large_honest_values_are_read(value):
    frame = codec.pack(["value", codec.encode(value), 1])[4:]
    assert 0 < num_lists(frame) <= 2 * MAX_VALUES
    assert codec.decode(codec.unpack(frame)[1]) == value


async def test_an_answer_of_too_many_values_is_an_error_and_no_more(either):
    tests = [CallTest((n,), n) for n in range(3)]
    verdict = await either.grade(EMPTY_SETS.format(MAX_VALUES), tests, "f")
    assert [outcome.kind for outcome in verdict.outcomes].count(OutcomeKind.ERROR) == 1
    assert any("more than 50000 values" in outcome.message for outcome in verdict.outcomes)
    assert not verdict.passed and verdict.num_passed == 0


async def test_the_values_of_a_grade_stay_within_their_budget(either):
    tests = [CallTest((n,), n) for n in range(8)]
    verdict = await either.grade(
        EMPTY_SETS.format(3_000), tests, "f", limits=Limits(wall_s=60.0, cpu_s=60.0)
    )
    assert {outcome.kind for outcome in verdict.outcomes} == {OutcomeKind.WRONG}
    kept = [outcome for outcome in verdict.outcomes if outcome.value is not None]
    assert len(kept) == 2


async def test_short_texts_count_in_the_budget_of_a_grade(either):
    """80,000 texts of two letters take 4.7 MB and travel as 400 kB."""
    source = "def f(x): return [chr(97 + n % 26) + chr(97 + n // 26 % 26) for n in range(80_000)]"
    tests = [CallTest((n,), n) for n in range(8)]
    verdict = await either.grade(source, tests, "f", limits=Limits(wall_s=60.0, cpu_s=60.0))
    assert {outcome.kind for outcome in verdict.outcomes} == {OutcomeKind.WRONG}
    assert len([outcome for outcome in verdict.outcomes if outcome.value is not None]) == 3


async def test_a_text_with_an_emoji_counts_four_bytes_a_character():
    plain, wide = "a" * 1000, "a" * 1000 + "\U0001f600"
    assert _size(plain).num_bytes < 1100
    assert _size(wide).num_bytes > 4000


async def test_the_budget_of_a_grade_counts_bytes_and_containers():
    budget = MemoryBudget()
    assert budget.take(Size(20 << 20, 0, 0)) and not budget.take(Size(20 << 20, 0, 0))
    assert not MemoryBudget().take(Size(0, (32 << 20) // 128 + 1, 0))
    budget = MemoryBudget()
    assert budget.take(Size(0, 0, 1 << 14)) and not budget.take(Size(0, 0, 1))
    budget = MemoryBudget()
    assert budget.take(Size(0, 0, 0, 1 << 19)) and not budget.take(Size(0, 0, 0, 1))


@pytest.mark.parametrize(
    ("value", "lists", "containers", "quotes"),
    [
        ([1, 2.5, "x", None], 5, 3, 6),
        ([[], (), set()], 9, 9, 10),
        (["[", '["i",'], 5, 5, 8),
        (list(range(5000)), 5003, 3, 4),
    ],
)
async def test_sizes_count_containers_apart_from_numbers(value, lists, containers, quotes):
    frame = codec.pack(["value", codec.encode(value), 1])[4:]
    assert codec.decode(unpack(frame)[1]) == value
    assert size_of(frame) == Size(len(frame), lists, containers, quotes)


def _size(value):
    return size_of(codec.pack(["value", codec.encode(value), 1])[4:])


async def test_a_long_frame_is_decoded_in_slices_to_the_same_value():
    for lists in (4096, 4097):
        body = b"[" + b",".join([rb'[1.5,"\u00e9\\",{"k":null}]'] * (lists // 2)) + b"]"
        expected = [[1.5, "\u00e9\\", {"k": None}]] * (lists // 2)
        assert unpack(body) == expected
    for broken in (b"[" * 9000, b"[" + b"[]," * 5000, b"[" + b"[]," * 5000 + b"]", b"[[]" * 5000):
        with pytest.raises(codec.CodecError):
            unpack(broken)


async def test_hostile_grades_make_no_honest_one_fail(either):
    """Six grades return the worst values, four have twenty trivial tests: all four pass."""
    hostile = EMPTY_SETS.format(45_000)
    worst = [
        either.grade(hostile, [CallTest((n,), n) for n in range(2)], "f", limits=Limits(wall_s=60))
        for _ in range(6)
    ]
    honest = [
        either.grade(
            "def f(x): return x",
            [CallTest((n,), n) for n in range(20)],
            "f",
            limits=Limits(wall_s=20.0),
        )
        for _ in range(4)
    ]
    verdicts = await asyncio.gather(*worst, *honest)
    assert [verdict.passed for verdict in verdicts] == [False] * 6 + [True] * 4


async def test_a_program_is_not_charged_for_the_hosts_time(either, monkeypatch):
    """The host takes 0.4 s for each of ten answers; the limit is 2.5 s in total."""
    read = codec.decode

    def slowly(data, depth=0):
        time.sleep(0.4)
        return read(data, depth)

    monkeypatch.setattr("tools.sandbox.grading.candidate.decode", slowly)
    tests = [CallTest((n,), "x" * 10_000) for n in range(10)]
    source = "def f(x): return 'x' * 10_000"
    verdict = await either.grade(source, tests, "f", limits=Limits(wall_s=2.5))
    assert verdict.passed, verdict
    assert verdict.wall_s > 4


async def test_time_granted_in_advance_is_not_granted_again():
    clock, given = Clock(), []
    clock.charge(5.0)  # no program to extend
    clock.bind(given.append)
    clock.charge(0.0, ahead=0.5)
    clock.charge(0.1)
    clock.charge(0.3)
    assert given == [5.5]
    clock.charge(0.2)
    assert given == [5.5, pytest.approx(0.1)]
    clock.bind(None)
    clock.charge(9.0)
    assert len(given) == 2


async def test_the_event_loop_continues_while_an_answer_is_decoded():
    reader, ticks = Reader(), []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    assert await reader.read(1 << 20, lambda: time.sleep(1) or "read", Clock()) == "read"
    ticking.cancel()
    assert len(ticks) > 5
    reader.close()
    assert await reader.read(1 << 20, lambda: "inline", Clock()) == "inline"

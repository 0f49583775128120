"""Splits trajectories into records and one table of all tokens, and joins them again.

The table has the tokens of all segments in order, with a column for each of
:data:`agents.segment.COLUMNS`. A token's sampling support is the list of token ids from which it
was sampled. If segments record supports, two more columns hold them: the number of ids in each
support, and the ids of all supports in order. If segments record the experts of their tokens, one
more column holds them, ``[n, layers, k]``, for the first tokens of each segment in order.

A second table has a row for each tool call: the number of the call's episode, and the values of
:data:`rl.rollout.trajectory.MEASURES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.segment import COLUMNS, Segment
from rl.rollout.trajectory import MEASURES, Trajectory

Table = dict[str, NDArray[Any]]
SIZES, IDS = "support_sizes", "support_ids"
EXPERTS = "experts"
_COUNTS = ("num_tokens", "has_supports", "num_routed")
"""What a record says of a segment's columns, beside the segment itself."""
EPISODE = "episode"


def to_table(trajectories: Sequence[Trajectory]) -> tuple[list[dict[str, Any]], Table]:
    """The records and the table of ``trajectories``.

    In a record, each segment has the number of its tokens instead of the tokens. The column of
    log-probabilities is float32 if that changes no value, and float64 otherwise.
    """
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    table = {
        name: _joined([np.asarray(getattr(segment, name)) for segment in segments], dtype)
        for name, dtype in COLUMNS.items()
    }
    table["loss_mask"] = table["loss_mask"].astype(np.bool_)
    table["sampling_logprobs"] = _narrow(table["sampling_logprobs"])
    if any(segment.supports for segment in segments):
        # One segment at a time, as a call of NumPy on lists lets no other thread run.
        sizes = [_sizes(segment.supports) for segment in segments]
        ids = [_ids(s.supports, n) for s, n in zip(segments, sizes, strict=True)]
        table[SIZES], table[IDS] = np.concatenate(sizes), np.concatenate(ids)
    if routed := [s.experts for s in segments if s.experts is not None]:
        table[EXPERTS] = np.concatenate(routed)
    return [_record(trajectory) for trajectory in trajectories], table


def from_table(records: Sequence[Mapping[str, Any]], table: Table) -> list[Trajectory]:
    """The trajectories from which :func:`to_table` made a table; they share the table's memory.

    Raises:
        ValueError: the table lacks a column, or has more or fewer tokens, sampling supports or
            experts than the records.
    """
    _check([segment for record in records for segment in record["segments"]], table)
    supports = _supports(table)
    end, routed, trajectories = 0, 0, []
    for record in records:
        segments = []
        for segment in record["segments"]:
            start, end = end, end + segment["num_tokens"]
            columns: dict[str, Any] = {name: table[name][start:end] for name in COLUMNS}
            if segment["has_supports"]:
                columns["supports"] = [next(supports) for _ in range(start, end)]
            if count := segment.get("num_routed", 0):
                columns["experts"] = table[EXPERTS][routed : routed + count]
                routed += count
            own = {k: v for k, v in segment.items() if k not in _COUNTS}
            segments.append(own | columns)
        trajectories.append(Trajectory.from_json({**record, "segments": segments}))
    return trajectories


def to_calls(trajectories: Sequence[Trajectory]) -> Table:
    """The table of the tool calls of ``trajectories``. Empty if no call was measured."""
    rows = [(line, call) for line, t in enumerate(trajectories) for call in t.tool_calls]
    if not any(c.seconds is not None or c.retries or c.status for _, c in rows):
        return {}
    seconds = [np.nan if call.seconds is None else call.seconds for _, call in rows]
    return {
        EPISODE: np.asarray([line for line, _ in rows], np.int64),
        "seconds": np.asarray(seconds, np.float64),
        "retries": np.asarray([call.retries for _, call in rows], np.int64),
        "status": np.asarray([call.status for _, call in rows], np.str_),
    }


def check_calls(table: Table) -> None:
    """Check that a table of tool calls has all columns, and the same number of rows in each.

    Raises:
        ValueError: a column is missing, or has another length or type.
    """
    kinds = {name: column.dtype.kind for name, column in table.items()}
    if kinds != {EPISODE: "i", "seconds": "f", "retries": "i", "status": "U"}:
        raise ValueError(f"its columns have the types {kinds}")
    if len({column.shape for column in table.values()}) > 1 or table[EPISODE].ndim != 1:
        raise ValueError("its columns have different lengths")


def add_calls(records: Sequence[Mapping[str, Any]], table: Table) -> None:
    """Add the rows of a table of tool calls to the calls of the records, which are episodes.

    Raises:
        ValueError: an episode has more or fewer calls than the table.
    """
    if not table:
        return
    counts = np.bincount(table[EPISODE], minlength=len(records)).tolist()
    rows = iter(list(zip(*(table[name].tolist() for name in MEASURES), strict=True)))
    for line, (record, count) in enumerate(zip(records, counts, strict=True)):
        calls = [call for turn in record["turns"] for call in turn["tool_calls"]]
        if len(calls) != count:
            raise ValueError(f"episode {line} has {len(calls)} tool calls, {count} were measured")
        for call in calls:
            measures = dict(zip(MEASURES, next(rows), strict=True))
            if np.isnan(measures["seconds"]):
                measures["seconds"] = None
            call.update(measures)


def _check(segments: Sequence[Mapping[str, Any]], table: Table) -> None:
    """Check that the table has the numbers of tokens and of sampling supports of ``segments``.

    Raises:
        ValueError: a column is missing, or a number differs.
    """
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"the table of tokens has no column {missing[0]!r}")
    count = sum(segment["num_tokens"] for segment in segments)
    for name in COLUMNS:
        if len(table[name]) != count:
            raise ValueError(f"the records have {count} tokens, {name} {len(table[name])}")
    with_support = sum(s["num_tokens"] for s in segments if s["has_supports"])
    sizes, ids = _support_columns(table)
    if len(sizes) != with_support:
        raise ValueError(
            f"the records have {with_support} tokens with a support, {SIZES} {len(sizes)}"
        )
    routed, given = sum(s.get("num_routed", 0) for s in segments), len(table.get(EXPERTS, ()))
    if routed != given:
        raise ValueError(f"the records have {routed} tokens with experts, {EXPERTS} {given}")
    if (total := int(sizes.sum())) != len(ids):
        raise ValueError(f"{SIZES} has the sum {total}, {IDS} has {len(ids)} ids")


def _record(trajectory: Trajectory) -> dict[str, Any]:
    segments = [_described(segment) for segment in trajectory.segments]
    return trajectory.to_json(tokens=False) | {"segments": segments}


def _described(segment: Segment) -> dict[str, Any]:
    described = {
        "num_tokens": len(segment),
        "has_supports": bool(segment.supports),
        "parent": segment.parent,
        "offset": segment.offset,
        "role": segment.role,
    }
    return (
        described if segment.experts is None else described | {"num_routed": len(segment.experts)}
    )


def _sizes(supports: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.fromiter(map(len, supports), np.int32, len(supports))


def _ids(supports: Sequence[Sequence[int]], sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(supports), np.int32, int(sizes.sum()))


def _supports(table: Table) -> Iterator[list[int]]:
    """The sampling supports of all tokens that have a support, in order."""
    sizes, ids = _support_columns(table)
    end = 0
    for size in map(int, sizes):
        start, end = end, end + size
        yield ids[start:end].tolist()


def _support_columns(table: Table) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sizes and the ids of the supports. Both are empty if no segment has supports."""
    none = np.empty(0, np.int32)
    return table.get(SIZES, none), table.get(IDS, none)


def _joined(parts: Sequence[NDArray[Any]], dtype: str) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _narrow(numbers: NDArray[np.float64]) -> NDArray[Any]:
    short = numbers.astype(np.float32)
    return short if np.array_equal(short, numbers) else numbers

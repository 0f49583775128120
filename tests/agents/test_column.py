"""A column reads and changes like a list, and is an array to numpy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from agents.column import Column
from agents.completion import Completion, FinishReason
from agents.segment import COLUMNS, Segment


def change(values):
    """Every way to change a list."""
    values.append(4)
    values.extend([1, 2])
    values += (7, 7)
    values.insert(1, 9)
    values[0] = 3
    values[-2:] = [5]
    del values[2]
    values.remove(1)
    assert values.pop() == 5
    del values[-1]
    values.append(6)
    return values


def test_a_column_reads_and_changes_like_a_list():
    column, plain = change(Column("int32", [1, 2, 3])), change([1, 2, 3])
    assert column == plain
    assert plain == column
    assert column == tuple(plain)
    assert column != [*plain, 0]
    assert [type(entry) for entry in column] == [int] * len(plain)
    assert type(column[0]) is int
    assert (column[1:], column[-1]) == (plain[1:], plain[-1])
    assert type(column[1:]) is list
    zero = [0]
    assert column + zero == [*plain, 0]
    assert zero + column == [0, *plain]
    assert (column.count(9), column.index(9), 9 in column, 8 in column) == (1, 1, True, False)
    assert sorted(column) == sorted(plain)
    assert repr(column) == repr(plain)
    with pytest.raises(ValueError, match="is not in list"):
        column.index(8)


def test_an_array_of_a_column_is_a_view_that_appends_leave_alone():
    column = Column("int32", [1, 2, 3])
    view = np.asarray(column)
    assert view.dtype == np.int32
    assert np.shares_memory(view, np.asarray(column))
    for token in range(100):
        column.append(token)
    assert view.tolist() == [1, 2, 3]
    assert np.asarray(column).tolist() == [1, 2, 3, *range(100)]
    assert np.asarray(column, dtype=np.int64).dtype == np.int64


def test_an_array_of_a_column_is_not_changed_by_any_change_of_the_column():
    source = np.array([1, 2, 3], dtype=np.int32)
    column = Column("int32", source)
    for view in (source, column.array, np.asarray(Column("int32", column))):
        former = view.tolist()
        column[1] += 7
        column.append(4)
        column.pop()
        column.pop()
        column.append(8)
        assert view.tolist() == former
    assert column == [1, 23, 8]
    view = column.array
    column.clear()
    column.append(5)
    assert (column, view.tolist()) == ([5], [1, 23, 8])
    fixed = np.array([1, 2], dtype=np.int32)
    fixed.flags.writeable = False
    column = Column("int32", fixed)
    column[0] = 6
    assert column == [6, 2]


def test_single_entries_are_changed_without_a_copy_of_the_column(monkeypatch):
    column = Column("int32", range(30_000))
    memory = column.array
    column[0] = 1  # The only copy: `memory` is read by others.
    monkeypatch.setattr(Column, "tolist", None)
    monkeypatch.setattr(Column, "_replace", None)
    buffer = column._buffer
    for i in range(len(column)):
        column[i] = -i
    for i in reversed(range(len(column))):
        assert column.pop() == -i
    assert column._buffer is buffer
    assert (len(column), memory[-1]) == (0, 29_999)


@pytest.mark.parametrize("key", [3, -4])
def test_an_entry_that_does_not_exist_is_not_changed(key):
    column = Column("int32", [1, 2, 3])
    with pytest.raises(IndexError):
        column[key] = 5
    with pytest.raises(IndexError):
        del column[key]
    with pytest.raises(IndexError):
        Column("int32").pop()
    assert column == [1, 2, 3]


@pytest.mark.parametrize("twin_of", [Column.copy, copy.copy, copy.deepcopy])
def test_a_copy_is_independent(twin_of):
    column = Column("float64", [0.1, -0.5])
    twin = twin_of(column)
    assert twin == [0.1, -0.5]
    twin[0] = 1.0
    twin.append(2.0)
    assert column == [0.1, -0.5]
    assert pickle.loads(pickle.dumps(column)) == column


@pytest.mark.parametrize(
    "wrong",
    [
        [0.5],
        [2**31],
        ["1"],
        "1234",
        b"abcd",
        bytearray(4),
        np.array([0.5]),
        np.array([2**31]),
        np.array([2**32]),
    ],
)
def test_a_number_of_another_type_is_no_entry(wrong):
    with pytest.raises((TypeError, OverflowError)):
        Column("int32", wrong)
    column = Column("int32", [1])
    with pytest.raises((TypeError, OverflowError)):
        column.extend(wrong)
    for change in (lambda x: column.repeat(x, 2), lambda x: column.__setitem__(0, x)):
        with pytest.raises((TypeError, OverflowError)):
            change(wrong[0] if isinstance(wrong, list) else 0.5)
    assert column == [1]


def test_numbers_of_an_array_must_fit():
    assert Column("int8", np.array([-128, 127])) == [-128, 127]
    for dtype, wrong in (("int8", np.array([5, 300])), ("int64", np.array([5, 2**63], "uint64"))):
        with pytest.raises(OverflowError, match=rf"{wrong[1]} does not fit into a column of"):
            Column(dtype, wrong)


def test_a_segment_keeps_columns_however_it_is_made():
    grown = Segment()
    grown.append_context([5, 6], 0)
    grown.append_completion(Completion((7,), (-0.1,), (3,), FinishReason.LENGTH), 0)
    given = Segment([5, 6, 7], [0, 0, 1], [0.0, 0.0, -0.1], [-1, -1, 3], [0, 0, 0])
    assert grown == given == given.copy() == Segment(**given.to_json())
    for segment in (grown, given, given.copy()):
        segment.check()
        types = {name: np.asarray(getattr(segment, name)).dtype.name for name in COLUMNS}
        assert types == COLUMNS
    twin = given.copy()
    twin.append_context([8], 1)
    assert len(given) == 3

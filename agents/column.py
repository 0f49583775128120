"""A column of numbers, which behaves like a list and is stored as an array.

In a list, each entry takes 8 bytes and the bytes of the number itself. A list of a million tokens
also takes time of the garbage collector, and must be converted before any computation.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, MutableSequence
from operator import index
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

N = TypeVar("N", int, float)
_CODES = {"int8": "b", "int32": "i", "int64": "q", "float64": "d"}
"""Type codes of :mod:`array`. In contrast to NumPy, :mod:`array` refuses numbers that do not
fit."""


class Column(MutableSequence[N]):
    """Numbers of one type.

    An entry is a Python number, and a slice is a list. ``numpy.asarray(column)`` makes no copy.
    Later changes of the column do not change the resulting array.

    Args:
        dtype: int8, int32, int64 or float64.
        values: the first entries. An array of this type is used without a copy.

    Raises:
        TypeError, OverflowError: an entry is not a number of this type.
    """

    __slots__ = ("_buffer", "_count", "_viewed")

    def __init__(self, dtype: DTypeLike, values: Iterable[N] | NDArray[Any] = ()) -> None:
        self._buffer = _array(values, np.dtype(dtype))
        self._count = len(self._buffer)
        self._viewed = isinstance(values, Column | np.ndarray)
        """Whether an array outside of the column shares the buffer. If so, the entries are copied
        before one of them changes."""

    @property
    def array(self) -> NDArray[Any]:
        """All entries, without a copy."""
        self._viewed = True
        return self._entries

    @property
    def _entries(self) -> NDArray[Any]:
        return self._buffer[: self._count]

    def tolist(self) -> list[N]:
        """All entries as Python numbers."""
        entries: list[N] = self._entries.tolist()
        return entries

    def copy(self) -> Column[N]:
        """An independent copy."""
        return Column(self._buffer.dtype, self._entries.copy())

    def extend(self, values: Iterable[N]) -> None:
        """Append all of ``values``."""
        more = _array(values, self._buffer.dtype)
        self._grow(len(more))[:] = more

    def repeat(self, value: N, count: int) -> None:
        """Append ``value`` ``count`` times."""
        entry = _array((value,), self._buffer.dtype)
        self._grow(count)[:] = entry

    def append(self, value: N) -> None:
        """Append one entry."""
        self.extend((value,))

    def insert(self, index: int, value: N) -> None:
        """Insert an entry before ``index``."""
        entries = self.tolist()
        entries.insert(index, value)
        self._replace(entries)

    def clear(self) -> None:
        """Remove all entries."""
        self._replace([])

    def count(self, value: object) -> int:
        """Number of entries that are equal to ``value``."""
        return int(np.count_nonzero(self._entries == value))

    def index(self, value: object, *bounds: int) -> int:
        """The first position of ``value``, as in a list.

        Raises:
            ValueError: no entry is equal to ``value``.
        """
        return self.tolist().index(value, *bounds)  # type: ignore[arg-type]

    def _grow(self, count: int) -> NDArray[Any]:
        """Make room for ``count`` more entries, and return that part of the array."""
        needed = self._count + count
        if needed > len(self._buffer):
            former = self._entries
            self._buffer = np.empty(max(needed, 2 * self._count), former.dtype)
            self._buffer[: self._count] = former
            self._viewed = False
        room = self._buffer[self._count : needed]
        self._count = needed
        return room

    def _replace(self, entries: list[N]) -> None:
        self._buffer = _array(entries, self._buffer.dtype)
        self._count = len(self._buffer)
        self._viewed = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def __contains__(self, value: object) -> bool:
        return bool((self._entries == value).any())

    @overload
    def __getitem__(self, key: int) -> N: ...
    @overload
    def __getitem__(self, key: slice) -> list[N]: ...
    def __getitem__(self, key: int | slice) -> N | list[N]:
        entry: N | list[N] = self._entries[key].tolist()
        return entry

    def __setitem__(self, key: int | slice, value: Any) -> None:
        if isinstance(key, slice):
            entries = self.tolist()
            entries[key] = value
            self._replace(entries)
            return
        entry = _array((value,), self._buffer.dtype)
        if self._viewed:
            self._buffer, self._viewed = self._entries.copy(), False
        self._entries[index(key)] = entry[0]

    def __delitem__(self, key: int | slice) -> None:
        if self._count and not isinstance(key, slice) and index(key) in (-1, self._count - 1):
            self._count -= 1
            if self._viewed:  # An entry that is appended later goes into another buffer.
                self._buffer = self._entries
            return
        entries = self.tolist()
        del entries[key]
        self._replace(entries)

    def __add__(self, other: Iterable[N]) -> list[N]:
        return self.tolist() + list(other)

    def __radd__(self, other: Iterable[N]) -> list[N]:
        return list(other) + self.tolist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return np.array_equal(self._entries, other._entries)
        if isinstance(other, list | tuple):
            return self.tolist() == list(other)
        return NotImplemented

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if dtype is not None and np.dtype(dtype) != self._buffer.dtype:
            return self._entries.astype(dtype)
        return self._entries.copy() if copy else self.array

    def __reduce__(self) -> tuple[Any, ...]:
        return Column, (self._buffer.dtype.name, self._entries.copy())

    def __repr__(self) -> str:
        return repr(self.tolist())


def column_of(values: Iterable[N], dtype: DTypeLike) -> Column[N]:
    """``values`` itself if it is a column, or a new column with these entries."""
    return values if isinstance(values, Column) else Column(dtype, values)


def _array(values: Iterable[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if isinstance(values, Column):
        values = values._entries
    if isinstance(values, np.ndarray):
        if not np.can_cast(values.dtype, dtype, "same_kind"):
            raise TypeError(f"an array of {values.dtype} is no column of {dtype}")
        fitted = values.astype(dtype, copy=False)
        if not np.can_cast(values.dtype, dtype) and dtype.kind == "i":
            wrong = np.flatnonzero(fitted != values)
            if len(wrong):
                raise OverflowError(f"{values[wrong[0]]} does not fit into a column of {dtype}")
        return fitted
    if isinstance(values, bytes | bytearray):  # array would read them as the memory of numbers.
        raise TypeError(f"{type(values).__name__} are no numbers of a column: pass list(values)")
    return np.frombuffer(array(_CODES[dtype.name], values), dtype)

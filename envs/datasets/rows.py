"""Rows of data sets: JSON, JSON lines, Parquet, a folder of them, a Hugging Face hub id, or a list.

A row is a plain dict with its file and line. The name of a file may name the split of its rows
(``train``, ``validation``, ``test``, as on the hub).
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envs.datasets.files import find_files
from tools.references import depends_on


class Row(NamedTuple):
    """One row of a data set."""

    where: str
    """File and line, for messages."""
    columns: dict[str, Any]


class NoAnswer(ValueError):
    """Raised for a row without an answer. Such rows are left out and counted."""


def is_empty(value: Any) -> bool:
    """Whether a column holds nothing: null, NaN, a blank text, or a list or object of these."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping | Sequence):
        return all(map(is_empty, value.values() if isinstance(value, Mapping) else value))
    return value is None or value != value


_SPLIT_WORDS = {
    **{"train": "train", "test": "test"},
    **dict.fromkeys(("validation", "valid", "dev"), "validation"),
}


def load_rows(
    source: str | Path | Iterable[Mapping[str, Any]],
    required: Sequence[str] = (),
    columns: str = "",
) -> list[Row]:
    """The rows of a source.

    Args:
        source: a path to a file or folder of ``.jsonl``, ``.jsonl.gz``, ``.parquet`` or ``.json``;
            a hub id, ``owner/name`` or ``owner/name:config``; or the rows themselves, also as the
            JSON of a list.
        required: columns that every row must have.
        columns: new and old names of columns: ``question=problem answer=extra.solution``. Rows then
            have only these columns and ``split``.

    Returns:
        The rows in order. A row without a ``split`` gets the split in its file's name, if any.

    Raises:
        ValueError: the file does not exist or has no rows, or a row is broken or lacks a column.
            The message names the source, the row and the column.
        DatasetUnavailable: the hub is unreachable or has no such data set.
    """
    found: Iterable[Row]
    if isinstance(source, str) and source.lstrip().startswith("["):
        found = _listed(source.encode(), "row")
    elif isinstance(source, str | Path):
        found = (row for file in find_files(source) for row in _read(file))
    else:
        found = (Row(f"row {i}", dict(row)) for i, row in enumerate(source, 1))
    named = parse_columns(columns)
    rows = [_renamed(row, named) for row in found] if named else list(found)
    for row in rows:
        if row.columns.get("split", "") is None:  # no split is given, as without the column
            del row.columns["split"]
    _check(rows, required)
    if not rows:
        raise ValueError(f"{name_of(source)}: has no rows")
    return rows


def name_of(source: object) -> str:
    """Name of a source, for messages."""
    text = str(source) if isinstance(source, str | Path) else "rows"
    return "rows" if text.lstrip().startswith("[") else text


def parse_columns(text: str) -> dict[str, str]:
    """The old name of each column by its new name: ``question=problem answer="the answer"``.

    Raises:
        ValueError: the text is malformed.
    """
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise ValueError(f"columns ({text}): {error}") from error
    if not all(name and equals and column for name, equals, column in pairs):
        raise ValueError(
            f"columns ({text}) must be such as question=problem answer=solution: a column that is "
            f"expected, and the one that rows have"
        )
    return {name: column for name, _, column in pairs}


def _renamed(row: Row, named: Mapping[str, str]) -> Row:
    columns = {"split": row.columns["split"]} if "split" in row.columns else {}
    for name, column in named.items():
        value: Any = row.columns
        # A column with a period in its name takes precedence over a path.
        for key in [column] if column in row.columns else column.split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise ValueError(
                    f"{row.where}: no column {column!r}, which columns names as {name!r}; it has "
                    f"{', '.join(row.columns) or 'none'}"
                )
            value = value[key]
        columns[name] = value
    return Row(row.where, columns)


def _read(file: Path) -> Iterator[Row]:
    depends_on(file)
    words = re.split(r"[^a-z]+", file.name.lower())
    named = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
    for row in _rows_of(file):
        if named is not None and row.columns.get("split") is None:
            row.columns["split"] = named
        yield row


def _rows_of(file: Path) -> Iterator[Row]:
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    return _json_list(file) if file.suffix == ".json" else _json_rows(file)


def _check(rows: Iterable[Row], required: Sequence[str]) -> None:
    for row in rows:
        for column in required:
            if column not in row.columns:
                has = ", ".join(row.columns)
                raise ValueError(f"{row.where}: no column {column!r}; it has {has or 'none'}")


def _json_list(file: Path) -> Iterator[Row]:
    """The rows of a .json file: a JSON list, or JSON lines."""
    text = b"".join(_lines(file)).strip()
    if text.startswith(b"["):
        return _listed(text, f"{file}, row")
    return _json_rows(file)


def _listed(text: bytes, where: str) -> Iterator[Row]:
    try:
        rows = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where.removesuffix(', row')}: not JSON ({error})") from error
    for number, columns in enumerate(rows, 1):
        # Open-Reasoner-Zero's rows are conversations without a column name.
        if isinstance(columns, list) and all(isinstance(turn, dict) for turn in columns):
            columns = {"conversations": columns}
        if not isinstance(columns, dict):
            raise ValueError(f"{where} {number}: expected an object, got {columns!r:.40}")
        yield Row(f"{where} {number}", columns)


def _json_rows(file: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            columns = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8 ({error})") from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        if not isinstance(columns, dict):
            raise ValueError(f"{where}: expected an object, got {line[:40].decode()!r}")
        yield Row(where, columns)


def _lines(file: Path) -> Iterator[bytes]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as lines:
            yield from lines
    # Missing permissions, a folder of that name, or a damaged gzip file.
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{file}: needs pyarrow: pip install 'turnwise[data]'") from error
    try:
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file}: not a Parquet file ({error})") from error
    for number, columns in enumerate(table.to_pylist(), 1):
        yield Row(f"{file}, row {number}", columns)

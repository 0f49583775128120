"""Rows of data sets: JSON lines, Parquet, a folder of them, a Hugging Face hub id, or a list.

A row is a plain dict, and knows where it stands. A file's name may say which split its rows
belong to (``train``, ``validation``, ``test``, as on the hub); ``envs.splits`` falls back on it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
SPLITS = ("train", "validation", "test")


class Row(NamedTuple):
    """One row of a data set."""

    where: str
    """File and line, for messages."""
    columns: dict[str, Any]


_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?")
_SPLIT_WORDS = {
    **{"train": "train", "test": "test"},
    **dict.fromkeys(("validation", "valid", "dev"), "validation"),
}


class DatasetUnavailable(RuntimeError):
    """Raised when a data set cannot be fetched: no network, no such repository, no access."""


def load_rows(
    source: str | Path | Iterable[Mapping[str, Any]], required: Sequence[str] = ()
) -> list[Row]:
    """Every row of a source.

    Args:
        source: a path to a file or folder of ``.jsonl``, ``.jsonl.gz`` or ``.parquet``; a hub id,
            ``owner/name`` or ``owner/name:config``; or the rows themselves.
        required: columns that every row must have.

    Returns:
        The rows in order. A row without a ``split`` whose file's name tells one gets it.

    Raises:
        ValueError: no such file, no rows, a broken row or a missing column; names all three.
        DatasetUnavailable: the hub does not give it.
    """
    if isinstance(source, str | Path):
        rows = [row for file in _files(source) for row in _read(file, required)]
    else:
        given = (Row(f"row {i}", dict(row)) for i, row in enumerate(source, 1))
        rows = list(_checked(given, required))
    if not rows:
        raise ValueError(f"{source}: has no rows")
    return rows


def _files(source: str | Path) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES))
        if not found:
            raise ValueError(f"{path}: no file in this folder ends in {', '.join(SUFFIXES)}")
        return found
    match = _HUB_ID.fullmatch(str(source))
    if match and not path.name.endswith(SUFFIXES):
        return _download(match["repository"], match["config"])
    raise ValueError(f"{source}: no such file or folder, and no hub id (owner/name)")


def _download(repository: str, config: str | None) -> list[Path]:
    """The files of a hub data set, or of one folder of it, from the cache or the hub."""
    try:
        # It takes longer to import than an environment may take to be made.
        import huggingface_hub
    except ImportError as error:
        raise DatasetUnavailable(
            f"{repository}: needs huggingface-hub: pip install 'turnwise[data]', or give a file"
        ) from error
    try:
        listed = huggingface_hub.HfApi().list_repo_files(repository, repo_type="dataset")
        wanted = _wanted(repository, config, listed)
        return [
            Path(huggingface_hub.hf_hub_download(repository, name, repo_type="dataset"))
            for name in wanted
        ]
    except _NoSuchFiles:
        raise
    # Its HTTP client, and so what it raises without a network, differs from version to version.
    except Exception as error:
        raise DatasetUnavailable(
            f"{repository}: the hub does not give it ({type(error).__name__}: {error})"
        ) from error


class _NoSuchFiles(ValueError):
    """The hub has the data set, but not what was asked of it."""


def _wanted(repository: str, config: str | None, listed: Sequence[str]) -> list[str]:
    """Which of a data set's files are loaded."""
    names = [name for name in listed if name.endswith(SUFFIXES)]
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    if config is None and len(folders) > 1:
        raise _NoSuchFiles(
            f"{repository}: has {', '.join(folders)}: choose one, {repository}:{folders[0]}"
        )
    wanted = [name for name in names if config is None or name.startswith(f"{config}/")]
    if not wanted:
        raise _NoSuchFiles(f"{repository}: has no {config or 'data'} files; it has {listed}")
    return sorted(wanted)


def _read(file: Path, required: Sequence[str]) -> Iterator[Row]:
    words = re.split(r"[^a-z]+", file.name.lower())
    told = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
    rows = _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)
    for row in _checked(rows, required):
        if told is not None:
            row.columns.setdefault("split", told)
        yield row


def _checked(rows: Iterable[Row], required: Sequence[str]) -> Iterator[Row]:
    for row in rows:
        for column in required:
            if column not in row.columns:
                has = ", ".join(row.columns)
                raise ValueError(f"{row.where}: no column {column!r}; it has {has or 'none'}")
        yield row


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
    # Missing rights, a folder of that name, no gzip file, one that is cut off or damaged.
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

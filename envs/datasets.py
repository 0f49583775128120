"""Rows of data sets: JSON, JSON lines, Parquet, a folder of them, a Hugging Face hub id, or a list.

A row is a plain dict, and knows where it stands. A file's name may say which split its rows
belong to (``train``, ``validation``, ``test``, as on the hub); ``envs.splits`` falls back on it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.registry import closest

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".json")
"""In a folder and on the hub, .json files count only where there are no others."""
SPLITS = ("train", "validation", "test")


class Row(NamedTuple):
    """One row of a data set."""

    where: str
    """File and line, for messages."""
    columns: dict[str, Any]


_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?")
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "state.json", "config.json")
_SPLIT_WORDS = {
    **{"train": "train", "test": "test"},
    **dict.fromkeys(("validation", "valid", "dev"), "validation"),
}


class DatasetUnavailable(RuntimeError):
    """Raised when a data set cannot be fetched: no network, no such repository, no access."""


def load_rows(
    source: str | Path | Iterable[Mapping[str, Any]],
    required: Sequence[str] = (),
    columns: str = "",
) -> list[Row]:
    """Every row of a source.

    Args:
        source: a path to a file or folder of ``.jsonl``, ``.jsonl.gz``, ``.parquet`` or ``.json``;
            a hub id, ``owner/name`` or ``owner/name:config``; or the rows themselves, also as the
            JSON of a list.
        required: columns that every row must have.
        columns: how rows name them: ``question=problem answer=extra.solution``. A row then has
            these columns and ``split``, and no others.

    Returns:
        The rows in order. A row without a ``split`` whose file's name tells one gets it.

    Raises:
        ValueError: no such file, no rows, a broken row or a missing column; names all three.
        DatasetUnavailable: the hub does not give it.
    """
    found: Iterable[Row]
    if isinstance(source, str) and source.lstrip().startswith("["):
        found = _listed(source.encode(), "row")
    elif isinstance(source, str | Path):
        found = (row for file in _files(source) for row in _read(file))
    else:
        found = (Row(f"row {i}", dict(row)) for i, row in enumerate(source, 1))
    named = parse_columns(columns)
    rows = [_renamed(row, named) for row in found] if named else list(found)
    _check(rows, required)
    if not rows:
        raise ValueError(f"{name_of(source)}: has no rows")
    return rows


def name_of(source: object) -> str:
    """What messages call a source."""
    text = str(source) if isinstance(source, str | Path) else "rows"
    return "rows" if text.lstrip().startswith("[") else text


def parse_columns(text: str) -> dict[str, str]:
    """Columns by the names that they are given: of ``question=problem answer="the answer"``.

    Raises:
        ValueError: the text is no such map.
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
        # A column whose own name holds a period comes first.
        for key in [column] if column in row.columns else column.split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise ValueError(
                    f"{row.where}: no column {column!r}, which columns names as {name!r}; it has "
                    f"{', '.join(row.columns) or 'none'}"
                )
            value = value[key]
        columns[name] = value
    return Row(row.where, columns)


def _files(source: str | Path) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
        return [path]
    if path.is_dir():
        inside = {str(file): file for file in sorted(path.rglob("*"))}
        found = [inside[name] for name in data_files(inside)]
        if not found:
            raise ValueError(f"{path}: no file in this folder ends in {', '.join(SUFFIXES)}")
        return found
    match = _HUB_ID.fullmatch(str(source))
    if match and not path.name.endswith(SUFFIXES):
        return _download(match["repository"], match["config"])
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    told = f"{source}: no such file or folder{where}, and no hub id (owner/name)."
    raise ValueError(told + _like(path))


def _like(path: Path) -> str:
    """A sentence that names the file or folder most like ``path``; or nothing.

    The first part of ``path`` that is missing is compared with what stands beside it.
    """
    missing = next((part for part in (path, *path.parents) if part.parent.is_dir()), None)
    if missing is None or not os.access(missing.parent, os.R_OK):
        return ""
    near = closest(missing.name, sorted(entry.name for entry in missing.parent.iterdir()))
    meant = missing.parent / (near or "") / path.relative_to(missing)
    return f" Did you mean {str(meant)!r}?" if near and meant.exists() else ""


def data_files(names: Iterable[str]) -> list[str]:
    """Which files hold rows: by their names, descriptions of data sets left out."""
    known = [name for name in names if name.endswith(SUFFIXES)]
    others = [name for name in known if not name.endswith(".json")]
    return others or [name for name in known if Path(name).name not in _DESCRIPTIONS]


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
            f"{repository}: no such file or folder, and the hub does not give it "
            f"({type(error).__name__}: {error})"
        ) from error


class _NoSuchFiles(ValueError):
    """The hub has the data set, but not what was asked of it."""


def _wanted(repository: str, config: str | None, listed: Sequence[str]) -> list[str]:
    """Which of a data set's files are loaded."""
    names = data_files(listed)
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    if config is None and len(folders) > 1:
        raise _NoSuchFiles(
            f"{repository}: has {', '.join(folders)}: choose one, {repository}:{folders[0]}"
        )
    wanted = [name for name in names if config is None or name.startswith(f"{config}/")]
    if not wanted:
        raise _NoSuchFiles(f"{repository}: has no {config or 'data'} files; it has {listed}")
    return sorted(wanted)


def _read(file: Path) -> Iterator[Row]:
    words = re.split(r"[^a-z]+", file.name.lower())
    told = next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)
    for row in _rows_of(file):
        if told is not None:
            row.columns.setdefault("split", told)
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
    """The rows of a JSON list; of JSON lines, which some such files hold."""
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
        # A conversation without a name of its own: Open-Reasoner-Zero's rows.
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

"""Reads a corpus as a stream of passages: JSON lines (also gzipped) or Parquet, a file or a folder.

A row has ``text`` and optionally ``title``; or the row has ``contents``, with a quoted title on the
first line and then the text (wiki-18 of FlashRAG and Search-R1). The id of a passage is in ``id``,
``_id`` or ``docid``; the default is the passage's index in the corpus.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tools.retrieval.passage import Passage

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_IDS = ("id", "_id", "docid")
_BATCH = 1024
"""Number of rows of a Parquet file in memory at the same time."""


def corpus_files(source: str | Path) -> list[Path]:
    """The files of a corpus, sorted by name.

    Raises:
        ValueError: there are no files.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        found = sorted(f for f in path.rglob("*") if f.name.endswith(SUFFIXES))
    else:
        found = [path] if path.is_file() and path.name.endswith(SUFFIXES) else []
    if not found:
        raise ValueError(f"{source}: expected a file, or a folder of them: {', '.join(SUFFIXES)}")
    return found


def read_corpus(source: str | Path, skip: int = 0) -> Iterator[Passage]:
    """The passages of a corpus, one in memory at a time.

    Args:
        source: a file or folder.
        skip: number of passages to skip. Skipped lines of JSON are not parsed.

    Raises:
        ValueError: there is no such corpus, or a row has another layout. The message names file and
            line.
    """
    number = 0
    for file in corpus_files(source):
        parquet = file.suffix == ".parquet"
        rows: Iterator[bytes | Mapping[str, Any]] = _parquet(file) if parquet else _lines(file)
        for line, row in enumerate(rows, 1):
            number += 1
            if number > skip:
                yield _passage(row, number - 1, f"{file}, line {line}")


def passage_of(row: Mapping[str, Any], number: int, where: str) -> Passage:
    """Convert a row of a corpus to a passage.

    Raises:
        ValueError: the row has no text in ``text`` or ``contents``.
    """
    name = next((str(row[key]) for key in _IDS if row.get(key) is not None), str(number))
    if isinstance(row.get("text"), str):
        title = row.get("title")
        return Passage(name, row["text"], "" if title is None else str(title))
    contents = row.get("contents")
    if not isinstance(contents, str):
        has = ", ".join(row)
        raise ValueError(f"{where}: expected a text under 'text' or 'contents'; it has {has}")
    title, found, text = contents.partition("\n")
    if not found:
        return Passage(name, contents)
    return Passage(name, text, title.strip().removeprefix('"').removesuffix('"'))


def contents_of(passage: Passage) -> str:
    """A passage as one text: the quoted title on the first line, then the text, as in wiki-18."""
    return f'"{passage.title}"\n{passage.text}' if passage.title else passage.text


def _passage(row: bytes | Mapping[str, Any], number: int, where: str) -> Passage:
    if isinstance(row, bytes):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected an object, got {row!r:.40}")
    return passage_of(row, number, where)


def _lines(file: Path) -> Iterator[bytes | Mapping[str, Any]]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error


def _parquet(file: Path) -> Iterator[bytes | Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{file}: needs pyarrow: pip install 'turnwise[data]'") from error
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_BATCH):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file}: not a Parquet file ({error})") from error


def batched(passages: Iterator[Passage], size: int) -> Iterator[list[Passage]]:
    """Lists of up to ``size`` passages."""
    while batch := list(islice(passages, size)):
        yield batch

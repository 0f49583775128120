"""Writes and reads trajectories: a file of JSON lines, and a file of all tokens as columns.

``step-000012.jsonl.gz`` has a line for each episode: its texts, rewards, calls and ending, the
number of tokens of each segment, and the checksum of all tokens. ``step-000012.npz`` has the tokens
of all episodes in this order, one array for each column (:mod:`rl.rollout.token_table`)::

    numpy.load("step-000012.npz")["token_ids"]

``step-000012.learner.npz`` has what the learner computed about the same tokens, in the columns of
:class:`rl.learner.seam.TokenRecord`. This file is missing where nothing was learned.

``step-000012.calls.npz`` has the duration, the retries and the status of each tool call. This file
is missing where no call was measured. Each call's episode is the number of its line, from 0, and
the calls of an episode stand in the order of its turns.

In format 1, which earlier versions wrote, the lines contain the tokens, and there is no second
file.
"""

from __future__ import annotations

import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rl.errors import UsageError
from rl.rollout.token_table import Table, add_calls, check_calls, from_table, to_calls, to_table
from rl.rollout.trajectory import Trajectory, TrajectoryGroup

FORMAT = 2
"""Format in which files are written. All formats up to this number can be read."""
LINES, TOKENS, LEARNER, CALLS = ".jsonl.gz", ".npz", ".learner.npz", ".calls.npz"
"""Endings of the files of episodes, of their tokens, of the learner's numbers, and of the measures
of tool calls."""
_FAST = 1
"""Level of compression. A higher level takes several times as long and saves little."""
_OF_LINES, _OF_TOKENS = "lines", "tokens"
"""Columns of the file of calls: the checksum of its lines, and, in files of earlier versions, of
its tokens."""
_DAMAGED = (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile)
"""Errors of reading a missing or damaged table."""


def tokens_path(path: Path) -> Path:
    """The file with the tokens of the episodes in ``path``."""
    return path.with_name(path.name.removesuffix(LINES) + TOKENS)


def learner_path(path: Path) -> Path:
    """The file with the learner's numbers of the tokens of the episodes in ``path``."""
    return path.with_name(path.name.removesuffix(LINES) + LEARNER)


def calls_path(path: Path) -> Path:
    """The file with the measures of the tool calls of the episodes in ``path``."""
    return path.with_name(path.name.removesuffix(LINES) + CALLS)


def tokens_file(path: Path, checksum: int | None) -> Path:
    """The file that has the tokens of the lines in ``path``.

    It is :func:`tokens_path`, or its hidden file if a write ended between the two renames.

    Args:
        path: the file of lines.
        checksum: the checksum of the tokens, which each line has.
    """
    file = tokens_path(path)
    hidden = partial_path(file)
    if hidden.is_file() and not _has_tokens(file, checksum) and _has_tokens(hidden, checksum):
        return hidden
    return file


def remove_trajectories(path: Path) -> None:
    """Remove the files of the episodes in ``path``, if they exist."""
    for file in (path, tokens_path(path), learner_path(path), calls_path(path)):
        file.unlink(missing_ok=True)
        partial_path(file).unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """The hidden file that becomes ``path`` once it is complete."""
    return path.with_name(f".{path.name}.tmp")


def write_trajectories(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Write the episodes of ``groups``. Equal episodes give equal bytes.

    All files are first written under hidden names and then renamed, the file of lines first: this
    rename replaces the earlier episodes by the new ones. Each line has the checksum of the tokens,
    and the file of calls has the checksum of the lines. A reader takes the hidden file where only
    this one belongs to the lines. If the process ends at any time, the earlier episodes or the new
    ones can be read.

    Args:
        path: the file of lines, which ends with :data:`LINES`.
        groups: the episodes.

    Raises:
        OSError: a file cannot be written.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    records, table = to_table(trajectories)
    head = {"format": FORMAT, "tokens": _checksum(table)}
    measured = to_calls(trajectories)

    def write_calls(raw: BinaryIO) -> None:
        lines = _lines_checksum(partial_path(path))
        _write_table(raw, measured | {_OF_LINES: np.asarray([lines], np.int64)})

    finish_write(path)
    writers: dict[Path, Callable[[BinaryIO], None]] = {
        path: lambda raw: _write_lines(raw, [head | record for record in records]),
        tokens_path(path): lambda raw: _write_table(raw, table),
    }
    if measured or calls_path(path).exists():
        # Without measures, the file says so until it is removed.
        writers[calls_path(path)] = write_calls
    _write_all(writers)
    if not measured:
        calls_path(path).unlink(missing_ok=True)
        partial_path(calls_path(path)).unlink(missing_ok=True)


def write_learner_columns(
    path: Path, groups: Sequence[TrajectoryGroup], columns: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write what the learner computed about the tokens of ``groups``.

    The file has a number for each token of the episodes in ``path``. Tokens of groups that the
    update left out have NaN.

    Args:
        path: the file of lines.
        groups: the episodes in ``path``.
        columns: by name, a number for each token of the groups that are not dropped.

    Raises:
        ValueError: a column has more or fewer numbers.
        OSError: the file cannot be written.
    """
    sizes = [sum(len(s) for t in group.trajectories for s in t.segments) for group in groups]
    used = np.repeat(np.asarray([not group.dropped for group in groups], np.bool_), sizes)
    table: Table = {}
    for name, column in columns.items():
        if len(column) != (expected := int(used.sum())):
            raise ValueError(f"{name} has {len(column)} numbers, the episodes {expected} tokens")
        table[name] = np.full(len(used), np.nan, np.float32)
        table[name][used] = column
    _write_all({learner_path(path): lambda raw: _write_table(raw, table)})


def read_learner_columns(path: Path, num_tokens: int) -> Table:
    """Read the columns that :func:`write_learner_columns` wrote. Empty if there is no file.

    Args:
        path: the file of lines.
        num_tokens: the number of tokens of its episodes.

    Raises:
        UsageError: the file is damaged, or belongs to other episodes.
    """
    file = learner_path(path)
    if not file.is_file():
        return {}
    try:
        table = _read_table(file)
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for name, column in table.items():
        if column.shape != (num_tokens,):
            raise UsageError(
                f"{file} does not belong to {path.name}: {name} has the shape {column.shape}, the "
                f"episodes have {num_tokens} tokens; remove {file.name}"
            )
    return table


def read_calls(path: Path, checksum: int | None) -> Table:
    """Read the measures of the tool calls of the episodes in ``path``. Empty if there is no file.

    Args:
        path: the file of lines.
        checksum: the checksum of its tokens, which each line has.

    Raises:
        UsageError: the file is damaged, or belongs to other episodes.
    """
    file = calls_path(path)
    hidden = partial_path(file)
    if hidden.is_file() and not _has_calls(file, path) and _has_calls(hidden, path):
        file = hidden
    if not file.is_file():
        return {}
    try:
        table = _read_table(file)
        belongs = _belong(table, path, checksum)
        table = {k: column for k, column in table.items() if k not in (_OF_LINES, _OF_TOKENS)}
        if table:
            check_calls(table)
    except _DAMAGED as error:
        raise UsageError(f"{file} cannot be read: {error}; remove {file.name}") from error
    if not belongs:
        raise UsageError(f"{file} does not belong to {path.name}: remove {file.name}")
    return table


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read the episodes that :func:`write_trajectories` wrote, in the same order.

    Args:
        path: the file of lines; its file of tokens lies beside it.

    Raises:
        UsageError: a file is missing or damaged, a newer version wrote it, or the lines and the
            tokens are of different writes.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        formats = {record.pop("format", 1) for record in records}
        newest = max(formats, default=FORMAT)
        if newest > FORMAT:
            raise UsageError(
                f"{path} has format {newest}, this turnwise reads formats up to {FORMAT}: read it "
                "with the turnwise that wrote it"
            )
        if formats <= {1}:
            return [Trajectory.from_json(record) for record in records]
        of_tokens = {record.pop("tokens", None) for record in records}
        table = _read_table(tokens_file(path, next(iter(of_tokens))))
        checksum = _checksum(table)
        if of_tokens != {checksum}:
            raise UsageError(
                f"{path} does not belong to the tokens in {tokens_path(path).name}, which are of "
                "another write: copy both files again from where they were written, or remove "
                "both and repeat the command that wrote them"
            )
        add_calls(records, read_calls(path, checksum))
        return from_table(records, table)
    except UsageError:
        raise
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} holds no episodes of a run: {error}") from error


def _write_all(writers: Mapping[Path, Callable[[BinaryIO], None]]) -> None:
    """Write files under hidden names, and then rename them in order."""
    first, *others = writers
    try:
        for file, write in writers.items():
            with partial_path(file).open("wb") as raw:
                write(raw)
        partial_path(first).replace(first)
    except OSError:
        # Leave no partial file on a full disk.
        for file in writers:
            partial_path(file).unlink(missing_ok=True)
        raise
    for file in others:
        partial_path(file).replace(file)


def finish_write(path: Path) -> None:
    """Rename the hidden files of an earlier write that ended after it renamed the lines."""
    tokens, calls = partial_path(tokens_path(path)), partial_path(calls_path(path))
    if tokens.is_file() and _has_tokens(tokens, _tokens_checksum(path)):
        tokens.replace(tokens_path(path))
    if calls.is_file() and _has_calls(calls, path):
        calls.replace(calls_path(path))


def _write_lines(raw: BinaryIO, records: Sequence[dict[str, Any]]) -> None:
    with gzip.GzipFile("", "wb", _FAST, raw, mtime=0) as file:
        for record in records:
            file.write(json.dumps(record).encode() + b"\n")


def _write_table(raw: BinaryIO, table: Table) -> None:
    """Write the layout of ``numpy.savez``, which does not allow setting the compression."""
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST) as archive:
        for name, column in table.items():
            # A name without a time: equal tokens give equal bytes.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, column, allow_pickle=False)


def _checksum(table: Table) -> int:
    """The CRC-32 of all columns and their names."""
    found = 0
    for name, column in sorted(table.items()):
        # A view of the bytes: a copy of all tokens would stop the other threads while it is made.
        found = zlib.crc32(column.view(np.uint8).data, zlib.crc32(name.encode(), found))
    return found


def _lines_checksum(path: Path) -> int:
    """The CRC-32 of a file of lines, which gzip writes at its end, before the size."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def _tokens_checksum(path: Path) -> int | None:
    """The checksum of the tokens of the lines in ``path``, or None if the lines cannot be read."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found: int | None = json.loads(next(file, "{}")).get("tokens")
            return found
    except _DAMAGED:
        return None


def _has_tokens(file: Path, checksum: int | None) -> bool:
    """Whether ``file`` is complete and has the tokens with this checksum."""
    try:
        return _checksum(_read_table(file)) == checksum
    except _DAMAGED:
        return False


def _has_calls(file: Path, path: Path) -> bool:
    """Whether ``file`` is complete and has the calls of the lines in ``path``."""
    try:
        return bool(_read_table(file)[_OF_LINES].tolist() == [_lines_checksum(path)])
    except _DAMAGED:
        return False


def _belong(table: Table, path: Path, checksum: int | None) -> bool:
    """Whether a table of calls belongs to the lines in ``path``.

    Tables of earlier versions have the checksum of the tokens instead of the lines.
    """
    if _OF_LINES in table:
        return bool(table[_OF_LINES].tolist() == [_lines_checksum(path)])
    return bool(table[_OF_TOKENS].tolist() == [checksum])


def _read_table(path: Path) -> Table:
    # numpy leaves a damaged file open if it opens the file itself.
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}

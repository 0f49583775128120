"""One episode: its record, and the numbers of its tokens."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.segment import COLUMNS
from rl.errors import UsageError
from rl.rollout.token_table import EPISODE, add_calls
from rl.rollout.trajectory_files import LINES, read_calls, tokens_file
from rl.viewer.episodes.rows import (
    DAMAGED_NUMBERS,
    EpisodeFile,
    Row,
    ending_of,
    episode_file,
    read_record,
    reward_of,
    shaped_reward_of,
    without_numbers,
)
from rl.viewer.episodes.tokens import Decoder

LEARNER = ("advantages", "logprobs", "entropies")
"""The learner's columns, in ``step-000012.learner.npz``."""
_CHUNK = 1 << 20
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile)


def read_episode(folder: Path, row: Row) -> dict[str, Any]:
    """The record of an episode with its row, without the tokens.

    Args:
        folder: the run's ``trajectories``.
        row: the episode's row in the index.

    Raises:
        UsageError: the episode cannot be read.
    """
    (episode,) = read_episodes(folder, [row])
    return episode


def read_episodes(folder: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The records of several episodes of one file, as :func:`read_episode` returns them.

    The file is decompressed once, if the rows are in the order of its lines.

    Raises:
        UsageError: an episode cannot be read.
    """
    if not rows:
        return []
    file = _file(folder, rows[0])
    records = _records(file, rows)
    for record, row in zip(records, rows, strict=True):
        _add_measures(file, row, record)
    return [_described(record, row) for record, row in zip(records, rows, strict=True)]


def _described(record: Mapping[str, Any], row: Row) -> dict[str, Any]:
    shown = {key: value for key, value in record.items() if key not in ("segments", "tokens")}
    return shown | {
        "row": row._asdict(),
        "ending": ending_of(record),
        "reward": reward_of(record),
        "shaped_reward": shaped_reward_of(record),
        "roles": sorted({turn.get("role", "") for turn in record["turns"]}),
    }


def read_tokens(folder: Path, row: Row, decoder: Decoder) -> dict[str, Any]:
    """The segments of an episode, with one list for each number of the tokens.

    ``logprob`` is the sampler's log-probability, ``learner`` the learner's before the update, and
    ``ratio`` their quotient as probabilities. A list that the run did not record is missing. A
    token that was not trained has None. ``damaged`` says why the learner's numbers cannot be read,
    or is "".

    Raises:
        UsageError: the tokens cannot be read.
    """
    file = _file(folder, row)
    (record,) = _records(file, [row])
    segments, start = [], 0
    try:
        table, damaged = _table(file, row, record.get("tokens")) if row.token >= 0 else ({}, "")
        for segment in record["segments"]:
            if row.token < 0:
                columns = {name: np.asarray(segment[name]) for name in COLUMNS}
            else:
                end = start + segment["num_tokens"]
                columns = {name: column[start:end] for name, column in table.items()}
                start = end
            own = {key: segment[key] for key in ("parent", "offset", "role")}
            segments.append(own | _shown(columns, decoder))
    except _DAMAGED as error:
        raise UsageError(f"the tokens of {file.path} cannot be read: {error}") from error
    return {"segments": segments, "decoded": decoder.known, "damaged": damaged}


def _table(
    file: EpisodeFile, row: Row, checksum: int | None
) -> tuple[dict[str, NDArray[Any]], str]:
    """The columns of all tokens of an episode, and why the learner's are missing, or ""."""
    end = row.token + row.tokens
    table = read_slice(tokens_file(file.path, checksum), tuple(COLUMNS), row.token, end)
    if file.learner_path.exists():
        try:
            table |= read_slice(file.learner_path, LEARNER, row.token, end)
        except DAMAGED_NUMBERS as error:
            return table, without_numbers(file, error)
    return table, ""


def read_slice(path: Path, names: tuple[str, ...], start: int, end: int) -> dict[str, NDArray[Any]]:
    """The entries from ``start`` to ``end`` of the columns ``names`` that an npz file has.

    Only the beginning of each column is decompressed.
    """
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in set(names) & {info.removesuffix(".npy") for info in archive.namelist()}:
            with archive.open(f"{name}.npy") as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = (
                    np.lib.format.read_array_header_1_0(file)
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0(file)
                )
                if dtype.hasobject or len(shape) != 1 or shape[0] < end:
                    raise ValueError(f"{name} has the shape {shape}, not {end} tokens or more")
                left = start * dtype.itemsize
                while left:
                    left -= len(file.read(min(left, _CHUNK))) or left
                found[name] = np.frombuffer(file.read((end - start) * dtype.itemsize), dtype)
    return found


def _add_measures(file: EpisodeFile, row: Row, record: dict[str, Any]) -> None:
    """Add the duration, the retries and the status of the episode's tool calls, if recorded."""
    table = read_calls(file.path, record.get("tokens"))
    own = {name: column[table[EPISODE] == row.line] for name, column in table.items()}
    if own:
        own[EPISODE] = np.zeros_like(own[EPISODE])
    try:
        add_calls([record], own)
    except ValueError as error:
        raise UsageError(f"the tool calls of {file.path} cannot be read: {error}") from error


def _shown(columns: Mapping[str, NDArray[Any]], decoder: Decoder) -> dict[str, Any]:
    mask = columns["loss_mask"].astype(bool)
    sampler = np.where(mask, columns["sampling_logprobs"], np.nan)
    shown: dict[str, Any] = {
        "ids": columns["token_ids"].tolist(),
        "text": decoder.pieces(columns["token_ids"].tolist()),
        "mask": mask.astype(int).tolist(),
        "turn": columns["turn_ids"].tolist(),
        "version": columns["versions"].tolist(),
        "logprob": _numbers(sampler),
    }
    if "logprobs" in columns:
        shown["learner"] = _numbers(columns["logprobs"])
        shown["ratio"] = _numbers(np.exp(columns["logprobs"].astype(np.float64) - sampler))
    for name, column in (("advantage", "advantages"), ("entropy", "entropies")):
        if column in columns:
            shown[name] = _numbers(columns[column])
    return shown


def _numbers(column: NDArray[Any]) -> list[float | None]:
    """A column with five significant digits; None where the number is not finite."""
    return [float(f"{x:.5g}") if math.isfinite(x) else None for x in column.astype(np.float64)]


def _file(folder: Path, row: Row) -> EpisodeFile:
    file = episode_file(folder / f"{row.file}{LINES}")
    assert file is not None, "the index holds only files of episodes"
    return file


def _records(file: EpisodeFile, rows: Sequence[Row]) -> list[dict[str, Any]]:
    records = []
    try:
        with gzip.open(file.path, "rb") as lines:
            for row in rows:
                lines.seek(row.byte)
                records.append(read_record(lines.readline(), file.path))
        return records
    except _DAMAGED as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file.path} cannot be read: {error}") from error

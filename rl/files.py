"""Writes files of a run: checks folders before the work, and reports errors in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from safetensors import SafetensorError

from rl.errors import REFUSED_INPUTS, RunFailure, UsageError


def turnwise_cache() -> Path:
    """The cache of turnwise: ``$TURNWISE_CACHE``, or ``turnwise`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(os.environ.get("TURNWISE_CACHE", str(Path(base) / "turnwise")))


def make_folder(path: Path, key: str = "out") -> None:
    """Create the folder of the setting ``key`` and check, before the work, that it is writable.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"{key} ({path}) cannot be created or written: {error.strerror}; choose another "
            f"{key}=..."
        ) from error


@contextmanager
def claimed_folder(path: Path, names: Sequence[str]) -> Iterator[None]:
    """Create the folder ``path``. The files ``names`` must not exist in it yet.

    If an input is refused inside the context, the folder is removed; see
    :func:`discard_if_refused`.

    Raises:
        UsageError: a file exists already, or the folder cannot be created or written.
    """
    for name in names:
        if (path / name).exists():
            raise UsageError(f"out ({path}) holds {name} already: choose another out=...")
    with discard_if_refused(path):
        make_folder(path)
        yield


@contextmanager
def discard_if_refused(path: Path) -> Iterator[None]:
    """Remove the folder ``path`` if the context created it and then refused an input.

    Refused inputs are wrong settings, a model or data that cannot be loaded, and an unavailable
    sandbox. A folder stays if it existed before, or holds metrics, a checkpoint or a server's log.
    """
    is_new = not path.exists()
    try:
        yield
    except REFUSED_INPUTS:
        if is_new and not _has_results(path):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _has_results(folder: Path) -> bool:
    metrics = folder / "metrics.jsonl"
    logged = metrics.exists() and metrics.stat().st_size > 0
    return logged or any(any(folder.glob(inner)) for inner in ("checkpoints/*", "logs/*"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors from writing ``path`` inside the context into a RunFailure.

    Raises:
        RunFailure: the file cannot be written, most often because the disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunFailure(f"{path} cannot be written: {error}") from error


def write_stdout(text: str) -> None:
    """Write text to stdout and flush it.

    Raises:
        RunFailure: stdout cannot be written. Later writes to stdout are dropped.
    """
    _write("stdout", sys.stdout, text)


def write_stderr(text: str) -> None:
    """Write text to stderr and flush it.

    Raises:
        RunFailure: stderr cannot be written. Later writes to stderr are dropped.
    """
    _write("stderr", sys.stderr, text)


def _write(name: str, stream: TextIO, text: str) -> None:
    with writing(Path(name)):
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
            raise


def replace_text(path: Path, text: str) -> None:
    """Replace the content of ``path`` atomically.

    Raises:
        RunFailure: the file cannot be written; it keeps its old content.
    """
    partial = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            # Leave no partial file on a full disk.
            partial.unlink(missing_ok=True)
            raise

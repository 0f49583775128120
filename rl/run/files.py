"""Files of a run: made before the work, written whole, and every failure in one line."""

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

from envs.datasets import DatasetUnavailable
from rl.errors import RunFailure, UsageError
from tools.sandbox.errors import SandboxUnavailable


def make_folder(path: Path) -> None:
    """Make ``out`` and see that files can be written there, before there is anything to write.

    Raises:
        UsageError: they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"out ({path}) is no folder that can be made and written: {error.strerror}; choose "
            f"another out=..."
        ) from error


@contextmanager
def claimed_folder(path: Path, names: Sequence[str]) -> Iterator[None]:
    """Make ``out`` as :func:`make_folder` does, for files that do not exist yet.

    A command that is refused while the context lasts leaves no folder, as of
    :func:`discard_if_refused`.

    Raises:
        UsageError: one of the files exists, or they cannot be written.
    """
    for name in names:
        if (path / name).exists():
            raise UsageError(f"out ({path}) holds {name} already: choose another out=...")
    with discard_if_refused(path):
        make_folder(path)
        yield


@contextmanager
def discard_if_refused(path: Path) -> Iterator[None]:
    """Remove ``path`` if the context made it and ends because something is wrong with its inputs.

    A model or data that cannot be loaded, and a sandbox that is not available, are such inputs. A
    folder that existed before stays, and so does one with a step's metrics, a checkpoint, or the
    log of a server.
    """
    is_new = not path.exists()
    try:
        yield
    except (UsageError, DatasetUnavailable, SandboxUnavailable):
        if is_new and not _has_results(path):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _has_results(folder: Path) -> bool:
    metrics = folder / "metrics.jsonl"
    logged = metrics.exists() and metrics.stat().st_size > 0
    return logged or any(any(folder.glob(inner)) for inner in ("checkpoints/*", "logs/*"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what could not be written.

    Raises:
        RunFailure: the system refused it (a full disk, most often).
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunFailure(f"{path} cannot be written: {error}") from error


def put(stream: TextIO, text: str) -> None:
    """Write to stdout or stderr, which may be files, now.

    Raises:
        RunFailure: it cannot be written; nothing more will be tried, not even as the process ends.
    """
    with writing(Path("stdout" if stream is sys.stdout else "stderr")):
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
            raise


def replace_text(path: Path, text: str) -> None:
    """Write ``path`` so that, whatever happens meanwhile, it has its old content or the new.

    Raises:
        RunFailure: it cannot be written.
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
            # Half a file on a full disk helps nobody.
            partial.unlink(missing_ok=True)
            raise

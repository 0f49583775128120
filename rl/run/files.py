"""Files of a run: made before the work, written whole, and every failure in one line."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from safetensors import SafetensorError

from rl.errors import RunFailure, UsageError


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


def claim_folder(path: Path, names: Sequence[str]) -> None:
    """Make ``out`` as :func:`make_folder` does, for files that nobody wrote yet.

    Raises:
        UsageError: one of them is there, or they cannot be written.
    """
    for name in names:
        if (path / name).exists():
            raise UsageError(f"out ({path}) holds {name} already: choose another out=...")
    make_folder(path)


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

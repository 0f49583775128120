"""Checks the files that a user gives to a run, and the patterns of files that the run returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from tools.sandbox.inside.workdir import MAX_FILES

MAX_GIVEN = MAX_FILES - 96
"""Maximum number of files and folders that a user can give to a run. The rest of a run's
``workdir.MAX_FILES`` is left for the program's own files."""
_MAX_PATH = 1000
_MAX_NAME = 255
_PAGE = 4096
"""Number of bytes in a page. Each file takes up whole pages of a run's disk."""
_MAX_PATTERNS = 64
_MAX_PATTERN = 1000


def checked_files(files: Mapping[str, str | bytes], disk_mb: int) -> tuple[tuple[str, bytes], ...]:
    """The files as paths and bytes for a ``Request``, after checking them.

    Raises:
        ValueError: a path leads out of the working directory or names both a file and a folder,
            there are too many files, or the files exceed ``disk_mb`` MiB.
    """
    checked: dict[str, bytes] = {}
    folders: set[str] = set()
    left = disk_mb << 20
    for name, content in files.items():
        path = _checked_path(name)
        try:
            data = content if isinstance(content, bytes) else utf8(content)
        except UnicodeEncodeError as error:
            raise ValueError(f"files[{name!r}] is not text: {error}") from None
        left -= -(-len(data) // _PAGE) * _PAGE
        if left < 0:
            raise ValueError(
                f"files[{name!r}] ({len(data)} bytes) does not fit: the files exceed "
                f"limits.disk_mb ({disk_mb} MiB)"
            )
        checked[str(path)] = data
        folders.update(str(folder) for folder in path.parents[:-1])
        if len(checked) + len(folders) > MAX_GIVEN:
            raise ValueError(
                f"files[{name!r}] is one too many: a run takes at most {MAX_GIVEN} files and "
                "folders"
            )
    for name in checked.keys() & folders:
        raise ValueError(f"files[{name!r}] must not be a file and a folder of other files")
    return tuple(checked.items())


def _checked_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not _is_inside(name):
        raise ValueError(f"files[{name!r}] must be a relative path inside the working directory")
    try:
        parts = [utf8(part) for part in path.parts]
    except UnicodeEncodeError as error:
        raise ValueError(f"files[{name!r}] is not a file name: {error}") from None
    if len(b"/".join(parts)) > _MAX_PATH or max(map(len, parts)) > _MAX_NAME:
        raise ValueError(
            f"files[{name[:60]!r}...] is too long: a path has at most {_MAX_PATH} bytes, "
            f"each part of it {_MAX_NAME}"
        )
    return path


def checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns of files to return, normalized for a ``Request``, after checking them.

    Raises:
        ValueError: there are too many patterns, or a pattern leads out of the working directory.
    """
    if isinstance(patterns, str):
        raise ValueError(f"collect ({patterns!r}) must be a list of paths: [{patterns!r}]")
    if len(patterns) > _MAX_PATTERNS:
        raise ValueError(f"collect has {len(patterns)} paths: at most {_MAX_PATTERNS}")
    for index, pattern in enumerate(patterns):
        if not _is_inside(pattern) or len(pattern) > _MAX_PATTERN:
            raise ValueError(
                f"collect[{index}] ({pattern[:100]!r}) must be a relative path inside the working "
                "directory, for example 'out.json' or 'plots/*.png'"
            )
    return tuple(_normal(pattern) for pattern in patterns)


def utf8(text: str) -> bytes:
    """``text`` as UTF-8. Surrogate escapes become the bytes for which they stand."""
    return text.encode("utf-8", "surrogateescape")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name)


def _normal(pattern: str) -> str:
    """The pattern without repeated ``**``.

    A final ``**`` becomes ``**/*``, which matches every file.
    """
    parts: list[str] = []
    for part in PurePosixPath(pattern).parts:
        if part != "**" or parts[-1:] != ["**"]:
            parts.append(part)
    return "/".join([*parts, "*"] if parts[-1] == "**" else parts)

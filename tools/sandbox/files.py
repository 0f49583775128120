"""Paths that users give: of files that a run finds, and of files that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

_MAX_PATTERNS = 64
_MAX_PATTERN = 1000


def checked_files(files: Mapping[str, str | bytes]) -> tuple[tuple[str, bytes], ...]:
    """Paths and contents, for a ``Request``.

    Raises:
        ValueError: a path leads out of the working directory.
    """
    checked = []
    for name, content in files.items():
        if not _is_inside(name):
            raise ValueError(
                f"files[{name!r}] must be a relative path inside the working directory"
            )
        data = content if isinstance(content, bytes) else utf8(content)
        checked.append((str(PurePosixPath(name)), data))
    return tuple(checked)


def checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Patterns of files to return, for a ``Request``.

    Raises:
        ValueError: there are too many, or one leads out of the working directory.
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
    """``text`` as bytes; what came from bytes that are no UTF-8 becomes them again."""
    return text.encode("utf-8", "surrogateescape")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name)


def _normal(pattern: str) -> str:
    """Without empty parts, and ending in a file: what ``**`` alone means is every file."""
    parts: list[str] = []
    for part in PurePosixPath(pattern).parts:
        if part != "**" or parts[-1:] != ["**"]:
            parts.append(part)
    return "/".join([*parts, "*"] if parts[-1] == "**" else parts)

"""Files of JSON lines, a row a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def find_file(path: str, expected: str, *, key: str = "data", instead: str = "") -> Path:
    """The file of JSON lines that a setting names; the arguments are those of :func:`read_lines`.

    Raises:
        ValueError: there is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        other = f"{instead} or " if instead else ""
        raise ValueError(f"{key} ({path}) must be {other}a file of JSON lines, {expected}")
    return file


def read_lines(
    path: str, parse: Callable[[Any], T], expected: str, *, key: str = "data", instead: str = ""
) -> list[T]:
    """What ``parse`` makes of each line.

    Args:
        path: the file.
        parse: from a line's value; what it raises says why the line is none.
        expected: what a line is to be, for messages.
        key: the setting that names the file, for messages.
        instead: what the setting may be instead of a file, for messages.

    Raises:
        ValueError: there is no such file, or a line is not what is expected; names the line.
    """
    file = find_file(path, expected, key=key, instead=instead)
    rows = []
    # Lines end in a line feed: str.splitlines would also cut at the separators inside texts.
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(parse(json.loads(line)))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: expected {expected} ({error})") from error
    return rows

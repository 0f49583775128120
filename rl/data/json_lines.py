"""Files of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def find_file(path: str, expected: str, *, key: str = "data", instead: str = "") -> Path:
    """The path of a file of JSON lines. The arguments are those of :func:`read_lines`.

    Raises:
        ValueError: the file does not exist.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        other = f"{instead} or " if instead else ""
        raise ValueError(f"{key} ({path}) must be {other}a file of JSON lines, {expected}")
    return file


def read_lines(
    path: str, parse: Callable[[Any], T], expected: str, *, key: str = "data", instead: str = ""
) -> list[T]:
    """Read a file and return the result of ``parse`` for each line.

    Args:
        path: the file.
        parse: called with a line's value. Raises an error with the reason if the line is invalid.
        expected: description of a valid line, for error messages.
        key: name of the setting, for error messages.
        instead: the setting's alternative to a file, for error messages.

    Raises:
        ValueError: the file does not exist, or a line is invalid. The message names the line.
    """
    file = find_file(path, expected, key=key, instead=instead)
    rows = []
    # bytes.splitlines: str.splitlines also splits at Unicode separators inside texts.
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(parse(json.loads(line)))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: expected {expected} ({error})") from error
    return rows

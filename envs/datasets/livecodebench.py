"""LiveCodeBench's rows: ``question_content``, ``public_test_cases``, ``private_test_cases``.

``private_test_cases`` is JSON, or base64 of the zlib stream of a pickled JSON text. ``metadata``
names the function to write (``func_name``); without it, a program reads standard input.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from itertools import islice
from typing import Any

from envs.datasets.rows import Row
from envs.datasets.verl_code import arguments

_COLUMNS = {"question_content", "public_test_cases", "private_test_cases"}
_MOST_BYTES = 1 << 29
"""Maximum size of the unpacked private tests of a row."""
_TEXT_CODES = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_OTHER_CODES = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
"""The operations of a pickled text besides the text; none of them has an effect here."""
_MOST_CODES = 8
"""A pickled text has at most five operations."""


def is_livecodebench(row: Row) -> bool:
    """Whether a row is in LiveCodeBench's layout."""
    return set(row.columns) >= _COLUMNS


def plain_row(row: Row) -> tuple[Row, int]:
    """The row in APPS' layout, and its number of public tests, which come first.

    Raises:
        ValueError: a column does not have LiveCodeBench's format.
    """
    columns = row.columns
    public, private = (_tests(row, name) for name in ("public_test_cases", "private_test_cases"))
    metadata = _decoded(row, "metadata") or {}
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    inputs, outputs = [], []
    for number, (given, expected) in enumerate(public + private):
        try:
            inputs.append(arguments(given) if name else given)
            outputs.append(json.loads(expected) if name else expected)
        except ValueError as error:
            raise ValueError(f"{row.where}, test {number + 1}: not JSON ({error})") from error
    found = {"inputs": inputs, "outputs": outputs, "fn_name": name or None}
    kept: dict[str, Any] = {
        key: columns[key] for key in ("starter_code", "split") if key in columns
    }
    named = {"problem_id": columns.get("question_id"), "question": columns["question_content"]}
    return Row(row.where, {**kept, **named, "input_output": found}), len(public)


def _tests(row: Row, column: str) -> list[tuple[str, str]]:
    try:
        return [(test["input"], test["output"]) for test in _decoded(row, column) or []]
    except (TypeError, LookupError) as error:
        raise ValueError(
            f"{row.where}, column {column}: expected a list of tests with input and output "
            f"({type(error).__name__}: {error})"
        ) from error


def _decoded(row: Row, column: str) -> Any:
    value = row.columns.get(column)
    if not isinstance(value, str) or not value.strip():
        return value or None
    try:
        return json.loads(_unpacked(value) if value.lstrip()[0] not in '[{"' else value)
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(
            f"{row.where}, column {column}: neither JSON nor packed JSON ({error})"
        ) from error


def _unpacked(text: str) -> str:
    """The JSON text in base64, zlib and pickle."""
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    if not stream.eof:
        raise ValueError(f"incomplete, or more than {_MOST_BYTES >> 20} MiB")
    # The operations are read and not executed: a pickle can run any code.
    operations = islice(pickletools.genops(data), _MOST_CODES)
    codes = [(code.name, value) for code, value, _ in operations]
    if others := {name for name, _ in codes} - _TEXT_CODES - _OTHER_CODES:
        raise ValueError(f"expected a pickled text, got {', '.join(sorted(others))}")
    return "".join(str(value) for name, value in codes if name in _TEXT_CODES)

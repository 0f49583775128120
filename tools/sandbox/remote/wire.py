"""Encodes and decodes the messages and errors between client and server, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tools.sandbox.errors import CopyRefused, SandboxBusy, SandboxFailure, SessionOver
from tools.sandbox.grading.cases import AssertTest, CallTest, StdioTest, Test
from tools.sandbox.host.reading import num_lists
from tools.sandbox.inside.codec import CodecError, decode, encode
from tools.sandbox.limits import Limits
from tools.sandbox.results import CallResult, Outcome, OutcomeKind, RunResult, Status, Verdict

VERSION = 2
"""Version of the messages. Client and server must have the same version."""
MAX_BODY = 64 << 20
"""Maximum number of bytes of a request's body."""
MAX_VALUES = 300_000
"""Maximum number of values in a message, including nested ones."""
OWNER = "Turnwise-Owner"
"""Name of the HTTP header with the owner of a request."""
TOKEN_VARIABLE = "TURNWISE_SANDBOX_TOKEN"
_ENVELOPE = 8
"""Number of nesting levels that a message adds around the values in it."""
_VALUES_KEPT = 64 << 20
"""Maximum number of bytes of returned values in one verdict."""
_QUOTES_KEPT = 2 * MAX_VALUES
"""Maximum number of quotation marks in one verdict's values: half of the number that clients
accept."""

Data = dict[str, Any]
"""A message: builtin data by field name."""


class WireError(ValueError):
    """Raised for a message that this version of the messages does not allow."""


def pack(message: Mapping[str, Any]) -> bytes:
    """A message as bytes.

    Raises:
        CodecError: a value is not builtin data, or is nested too deeply.
    """
    return json.dumps(encode(dict(message), -_ENVELOPE), separators=(",", ":")).encode()


def unpack(body: bytes, most: int = MAX_VALUES) -> Data:
    """Decode the message in ``body``.

    Args:
        body: the received bytes.
        most: maximum number of values of the message.

    Raises:
        WireError: the body is malformed, or has too many values.
    """
    try:
        num_lists(body, most)
        message = decode(json.loads(body), -_ENVELOPE)
    except (CodecError, ValueError, RecursionError) as error:
        raise WireError(f"malformed message: {error}") from None
    if not isinstance(message, dict):
        raise WireError(f"malformed message: a dict was expected, not {type(message).__name__}")
    return message


def fields_of(record: Any) -> Data:
    """The fields of a flat dataclass, by name."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def read_limits(data: Any) -> Limits:
    """Decode limits that ``fields_of`` wrote.

    Raises:
        WireError: the data has wrong fields.
        ValueError: a limit is outside its range.
    """
    try:
        return Limits(**data)
    except TypeError as error:
        raise WireError(f"limits: {error}") from None


def read_requested_limits(data: Any) -> Limits:
    """Decode the limits of a request to a server.

    Raises:
        WireError: as ``read_limits``.
        ValueError: as ``read_limits``, or the limits allow a larger result than a server can hold.
    """
    limits = read_limits(data)
    for name, kb in (("output_kb", 2 * limits.output_kb), ("returned_kb", limits.returned_kb)):
        if kb << 10 > MAX_BODY:
            raise ValueError(
                f"limits.{name} ({getattr(limits, name)}) is too high for a server, which returns "
                f"at most {MAX_BODY >> 20} MiB of output, and of files"
            )
    return limits


def read_files(data: dict[Any, Any]) -> dict[str, str | bytes]:
    """Decode the contents of files, by path.

    Raises:
        WireError: a path is not text, or a content is not text or bytes.
    """
    for path, content in data.items():
        if not isinstance(path, str) or not isinstance(content, str | bytes):
            raise WireError(f"files: a path must map to text or bytes, not {path!r:.80}")
    return data


def read_patterns(data: list[Any]) -> list[str]:
    """Decode the patterns of files to return.

    Raises:
        WireError: a pattern is not text.
    """
    if not all(isinstance(pattern, str) for pattern in data):
        raise WireError("collect must be a list of texts")
    return data


_TESTS: dict[str, type[Test]] = {"call": CallTest, "stdio": StdioTest, "assert": AssertTest}


def write_tests(tests: Sequence[Test]) -> list[Data]:
    """Tests as data."""
    kinds = {kind: name for name, kind in _TESTS.items()}
    return [{"test": kinds[type(test)], **fields_of(test)} for test in tests]


def read_tests(data: list[Any]) -> list[Test]:
    """Decode tests that ``write_tests`` wrote.

    Raises:
        WireError: an item is not a test.
    """
    tests: list[Test] = []
    for item in data:
        match item:
            case (
                {
                    "test": "call",
                    "args": tuple(),
                    "expected": _,
                    "kwargs": dict(),
                    "tolerance": None | int() | float(),
                    "rules": str(),
                }
                | {"test": "stdio", "stdin": str(), "stdout": str(), "rules": str()}
                | {
                    "test": "assert",
                    "code": str(),
                    "setup": str(),
                }
            ):
                rest = {name: value for name, value in item.items() if name != "test"}
            case _:
                raise WireError(f"tests[{len(tests)}] is none of {', '.join(_TESTS)}")
        try:
            tests.append(_TESTS[item["test"]](**rest))
        except TypeError as error:
            raise WireError(f"tests[{len(tests)}]: {error}") from None
    return tests


def read_run(data: Data) -> RunResult:
    """Decode the result of a run that ``fields_of`` wrote."""
    return RunResult(**{**data, "status": Status(data["status"])})


def read_call(data: Data) -> CallResult:
    """Decode the result of a session call that ``fields_of`` wrote."""
    return CallResult(**{**data, "status": Status(data["status"])})


def write_verdict(verdict: Verdict) -> Data:
    """A verdict as data. Values that are too large are left out, but their outcomes are kept."""
    outcomes, left, quotes_left = [], _VALUES_KEPT, _QUOTES_KEPT
    for outcome in verdict.outcomes:
        data = fields_of(outcome)
        text = json.dumps(encode(outcome.value))
        left -= len(text)
        quotes_left -= text.count('"')
        kept = left >= 0 and quotes_left >= 0
        outcomes.append(data if kept else {**data, "value": None})
    return {**fields_of(verdict), "outcomes": outcomes}


def read_verdict(data: Data) -> Verdict:
    """Decode a verdict that ``write_verdict`` wrote."""
    outcomes = tuple(
        Outcome(**{**outcome, "kind": OutcomeKind(outcome["kind"])}) for outcome in data["outcomes"]
    )
    return Verdict(**{**data, "outcomes": outcomes})


@dataclass(frozen=True)
class _ErrorKind:
    raised: type[Exception]
    name: str
    http_status: int


_ERRORS = (  # the first match applies
    _ErrorKind(SandboxBusy, "busy", 429),
    _ErrorKind(SandboxFailure, "failure", 503),
    _ErrorKind(SessionOver, "over", 410),
    _ErrorKind(CopyRefused, "refused", 409),
    _ErrorKind(ValueError, "value", 400),
)
KNOWN_ERRORS = tuple(kind.raised for kind in _ERRORS)


def write_error(error: Exception) -> tuple[int, Data]:
    """One of ``KNOWN_ERRORS`` as an HTTP status and data."""
    kind = next(kind for kind in _ERRORS if isinstance(error, kind.raised))
    retryable = isinstance(error, SandboxFailure) and error.retryable
    return kind.http_status, {"error": kind.name, "message": str(error), "retryable": retryable}


def read_error(data: Data) -> Exception:
    """Decode an error that ``write_error`` wrote."""
    for kind in _ERRORS:
        if kind.name == data.get("error"):
            if issubclass(kind.raised, SandboxFailure):
                return kind.raised(data["message"], retryable=data["retryable"])
            return kind.raised(data["message"])
    return SandboxFailure(f"the server sent an error that this version does not know: {data}")

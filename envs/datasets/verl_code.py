"""Tests of programs as JSON texts in verl's rows: reading and writing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from envs.datasets.rows import Row
from tools.sandbox import APPS, AssertTest, CallTest, StdioTest, Test


def code_tests(row: Row) -> tuple[str, tuple[Test, ...]]:
    """The function to write ("" for a whole program) and the tests, from a row's ground truth.

    Three JSON layouts are known: APPS' ``inputs`` and ``outputs``, with ``fn_name`` if tests call a
    function; ``asserts``, a list of test code, with ``entry_point``; or a plain list of test code.

    Raises:
        ValueError: the layout is unknown, or there are no tests.
    """
    gold = row.columns["ground_truth"]
    try:
        found = json.loads(gold) if isinstance(gold, str) else gold
        if isinstance(found, list):
            found = {"asserts": found}
        name = str(found.get("fn_name") or found.get("entry_point") or "")
        tests = tuple(_tests(found, name))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{row.where}, ground_truth: expected JSON with inputs and outputs, or asserts "
            f"({type(error).__name__}: {error})"
        ) from error
    if not tests:
        raise ValueError(f"{row.where}, ground_truth: has no tests")
    return name, tests


def _tests(found: dict[str, Any], name: str) -> Sequence[Test]:
    if "asserts" in found:
        return [AssertTest(str(code)) for code in found["asserts"]]
    pairs = list(zip(found["inputs"], found["outputs"], strict=True))
    if not name:
        return [StdioTest(lines(given), lines(expected), APPS) for given, expected in pairs]
    return [call(arguments(given), _value(expected)) for given, expected in pairs]


def call(args: Sequence[Any], expected: Any, rules: str = APPS) -> CallTest:
    """A call with values from JSON, which writes the keys of a dict as texts.

    As in APPS' and verl's graders, they become integers in the first argument if all of them are
    integers.
    """
    first, *rest = args or [None]
    if rules == APPS and isinstance(first, dict):
        with contextlib.suppress(ValueError):
            args = [{int(key): value for key, value in first.items()}, *rest]
    return CallTest(tuple(args), expected, rules=rules)


def lines(text: Any) -> str:
    """Standard input or output as one text, from a text or a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def arguments(given: Any) -> list[Any]:
    """The arguments of a call, from a list or from a text with one JSON value per line."""
    if not isinstance(given, str):
        return list(given)
    return [json.loads(line) for line in given.split("\n") if line.strip()]


def _value(expected: Any) -> Any:
    return json.loads(expected) if isinstance(expected, str) else expected


def json_of_tests(name: str, tests: Sequence[Test]) -> str:
    """The tests as a JSON text that :func:`code_tests` reads. They must be of the same kind."""
    if all(isinstance(test, AssertTest) for test in tests):
        codes = [f"{t.setup}\n{t.code}".strip() for t in tests if isinstance(t, AssertTest)]
        return json.dumps({"entry_point": name, "asserts": codes})
    if all(isinstance(test, StdioTest) for test in tests):
        programs = [test for test in tests if isinstance(test, StdioTest)]
        given, expected = [test.stdin for test in programs], [test.stdout for test in programs]
        return json.dumps({"inputs": given, "outputs": expected})
    calls = [test for test in tests if isinstance(test, CallTest)]
    if len(calls) < len(tests) or any(test.kwargs or test.tolerance for test in calls):
        raise ValueError(f"{name}: tests of several kinds, or with keywords or a tolerance")
    texts = [json.dumps(test.expected) for test in calls]
    given = ["\n".join(map(json.dumps, test.args)) for test in calls]
    return json.dumps({"fn_name": name, "inputs": given, "outputs": texts})

"""Tasks from rows in APPS' layout (``question``, ``input_output``; arXiv:2105.09938).

With ``fn_name``, tests call a function; otherwise a program reads standard input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from envs.code.task import CodeTask
from envs.datasets import Row
from envs.datasets.verl_code import call, lines
from tools.sandbox import APPS, StdioTest, Test

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json", "builtins"),
)
_IMPORTS = "; ".join(
    (
        *(f"from {name} import *" for name in (*_MODULES, "typing")),
        f"import {', '.join(_MODULES)}, fractions, time",
        "globals().pop({name!r}, None)\n",
    )
)
"""Imports that the graders of APPS, verl and LiveCodeBench put before a submission, in one line.
None of these names is the function to write."""
_METHOD = """
if hasattr(globals().get("Solution"), {name!r}):
    {name} = Solution().{name}
"""
"""Code after a submission. If the submission wrote a class ``Solution``, the class's method becomes
the function that the tests call."""
_STDIO = "Write a Python program that reads standard input and prints the answer."


def is_apps(row: Row) -> bool:
    """Whether a row is in APPS' layout."""
    return {"question", "input_output"} <= set(row.columns)


def apps_task(row: Row, rules: str = APPS, num_public: int = 1) -> CodeTask | None:
    """The task of a row, or None if the row has no tests.

    Args:
        row: the row.
        rules: by whose rules the tests compare, see ``tools.sandbox.grading.cases.RULES``.
        num_public: number of public tests, which come first.

    Raises:
        ValueError: a column does not have APPS' format.
    """
    found = _object(row, "input_output")
    solutions = _decoded(row, "solutions", row.columns.get("solutions")) or []
    if not isinstance(solutions, list) or not all(isinstance(one, str) for one in solutions):
        raise ValueError(f"{row.where}, column solutions: expected a list of texts")
    question = _words(row, "question", row.columns["question"])
    name = "" if found.get("fn_name") is None else _words(row, "fn_name", found["fn_name"])
    if name and not name.isidentifier():
        raise ValueError(f"{row.where}: fn_name ({name!r}) must be a name")
    tests = tuple(_tests(row, found, name, rules))
    if not tests:
        return None
    starter = str(row.columns.get("starter_code") or "").rstrip()
    asks = _STDIO
    if name:
        begins = f"Write it as it begins here:\n```python\n{starter}\n```"
        asks = begins if starter else f"Write the function {name}."
    reference = solutions[0] if solutions else None
    return task_of(f"{question}\n{asks}", name, tests, reference, num_public)


def task_of(
    prompt: str,
    name: str,
    tests: tuple[Test, ...],
    reference: str | None = None,
    num_public: int = 1,
) -> CodeTask:
    """The task to write the function or method ``name``, or a program if ``name`` is ""."""
    return CodeTask(
        prompt=prompt,
        entry_point=name,
        public=tests[: max(1, num_public)],
        hidden=tests,
        prelude=_IMPORTS.format(name=name) if name else "",
        epilogue=_METHOD.format(name=name) if name else "",
        reference=reference,
    )


def _tests(row: Row, found: Mapping[str, Any], name: str, rules: str) -> Iterator[Test]:
    inputs, outputs = found.get("inputs", []), found.get("outputs", [])
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"{row.where}: inputs and outputs must be lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"{row.where}: {len(inputs)} inputs, but {len(outputs)} outputs")
    for given, expected in zip(inputs, outputs, strict=True):
        if not name:
            yield StdioTest(lines(given), lines(expected), rules)
        elif isinstance(given, list):
            yield call(given, expected, rules)
        else:
            raise ValueError(f"{row.where}: inputs of a function must be lists, got {given!r:.40}")


def _object(row: Row, column: str) -> Mapping[str, Any]:
    value = _decoded(row, column, row.columns[column]) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{row.where}, column {column}: expected an object, got {value!r:.40}")
    return value


def _decoded(row: Row, column: str, value: object) -> object:
    """A value, parsed if it is JSON text, or None if the text is empty."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{row.where}, column {column}: not JSON ({error})") from error


def _words(row: Row, column: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{row.where}, column {column}: expected a text, got {value!r:.40}")
    return value

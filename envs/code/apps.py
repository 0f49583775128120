"""Tasks from rows in APPS' layout (``question``, ``input_output``; arXiv:2105.09938).

With ``fn_name``, tests call a function; otherwise a program reads standard input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.code.task import CodeTask
from envs.datasets import Row
from tools.sandbox import AssertTest, StdioTest, Test

IMPORTS = (
    "import bisect, collections, functools, heapq, itertools, math, re, string\n"
    "from typing import *\n"
)
"""Imports that APPS' starter code and its solutions assume."""
_SAME = """
def same(got, expected):
    def plain(value):
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value
    got, wrapped = plain(got), isinstance(expected, list) and len(expected) == 1
    return got == expected or (wrapped and got == expected[0])
"""
"""APPS' comparison of an output with the expected value, as Python code. A tuple equals a list.
If the expected value is a list of one element, the output can also equal that element."""
_STDIO = "Write a Python program that reads standard input and prints the answer."


def is_apps(row: Row) -> bool:
    """Whether a row is in APPS' layout."""
    return {"question", "input_output"} <= set(row.columns)


def apps_task(row: Row) -> CodeTask | None:
    """The task of a row, or None if the row has no tests.

    Raises:
        ValueError: a column does not have APPS' format.
    """
    tests = _object(row, "input_output")
    solutions = _decoded(row, "solutions", row.columns.get("solutions")) or []
    if not isinstance(solutions, list) or not all(isinstance(one, str) for one in solutions):
        raise ValueError(f"{row.where}, column solutions: expected a list of texts")
    starter = row.columns.get("starter_code") or ""
    question = _words(row, "question", row.columns["question"])
    return _task(row, question, str(starter), tests, solutions[0] if solutions else None)


def _task(
    row: Row, question: str, starter: str, tests: Mapping[str, Any], reference: str | None
) -> CodeTask | None:
    inputs, outputs = tests.get("inputs", []), tests.get("outputs", [])
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"{row.where}: inputs and outputs must be lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"{row.where}: {len(inputs)} inputs, but {len(outputs)} outputs")
    if not inputs:
        return None
    name = tests.get("fn_name")
    graded: tuple[Test, ...]
    if name is None:
        pairs = zip(inputs, outputs, strict=True)
        graded = tuple(StdioTest(_lines(given), _lines(said)) for given, said in pairs)
        return CodeTask(f"{question}\n{_STDIO}", "", graded[:1], graded, reference=reference)
    name = _words(row, "fn_name", name)
    if not name.isidentifier():
        raise ValueError(f"{row.where}: fn_name ({name!r}) must be a name")
    graded = tuple(
        AssertTest(f"assert same({name}({_arguments(row, given)}), {said!r})", _SAME)
        for given, said in zip(inputs, outputs, strict=True)
    )
    asks = f"Write the function {name}."
    if starter:
        asks = f"Write it as it begins here:\n```python\n{starter.rstrip()}\n```"
    return CodeTask(
        prompt=f"{question}\n{asks}",
        entry_point=name,
        public=graded[:1],
        hidden=graded,
        prelude=IMPORTS,
        epilogue=_METHOD.format(name=name),
        reference=reference,
    )


_METHOD = """
if "Solution" in globals() and "{name}" not in globals():
    {name} = Solution().{name}
"""
"""Code after a submission. If the submission wrote a class ``Solution``, the class's method becomes
the function that the tests call."""


def _arguments(row: Row, given: object) -> str:
    if not isinstance(given, list):
        raise ValueError(f"{row.where}: inputs of a function must be lists, got {given!r:.40}")
    return ", ".join(map(repr, given))


def _lines(text: object) -> str:
    """Standard input or output as one text, from a text or a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


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

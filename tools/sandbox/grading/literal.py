"""Parses test code that only compares a call with a literal: ``assert f([1, 2]) == 3``.

The host makes such a call itself. The test then needs one process instead of two and takes half as
long, and its outcome has the returned value. All other test code runs in a separate sandbox.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.sandbox.grading.cases import EXACT, AssertTest, CallTest
from tools.sandbox.inside.codec import CodecError, encode

_LONGEST = 10_000
"""Maximum number of characters of test code to parse here. Longer code runs in a sandbox."""


@dataclass(frozen=True)
class Call:
    """A call of a submission's function, with the expected value."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any
    tolerance: float | None = None
    rules: str = EXACT


def call_of(test: CallTest | AssertTest, entry_point: str | None) -> Call | None:
    """The call and expected value of which a test consists, or None for any other test code.

    Args:
        test: the test.
        entry_point: name of the function that a ``CallTest`` calls. In test code, only this name
            refers to the submission; if None, every undefined name does.
    """
    if isinstance(test, AssertTest):
        return None if test.setup.strip() else _parsed(test.code, entry_point)
    assert entry_point is not None, "a grade with call tests was checked to have one"
    args, expected = test.args, test.expected
    return Call(entry_point, args, test.kwargs, expected, test.tolerance, test.rules)


@functools.lru_cache(maxsize=4096)  # the episodes of a group have the same tests
def _parsed(code: str, entry_point: str | None) -> Call | None:
    if len(code) > _LONGEST:
        return None
    try:
        match ast.parse(code).body:
            case [
                ast.Assert(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id=name), args=args, keywords=keywords),
                        ops=[ast.Eq()],
                        comparators=[literal],
                    ),
                    msg=None,
                )
            ] if name == entry_point or (entry_point is None and name not in vars(builtins)):
                values = tuple(ast.literal_eval(node) for node in args)
                named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords}
                expected = ast.literal_eval(literal)
                encode((values, named, expected))
            case _:
                return None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, CodecError):
        return None  # the interpreter inside reports the error
    if None in named:  # **{...}
        return None
    return Call(name, values, {str(key): value for key, value in named.items()}, expected)

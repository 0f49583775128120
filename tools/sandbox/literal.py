"""Test code that is a call in disguise: ``assert f([1, 2]) == 3``.

The judge can make such a call itself. It takes one process instead of two, half the time, and the
outcome says what came back. All other test code runs in a sandbox of its own.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.sandbox.cases import AssertTest, CallTest
from tools.sandbox.inside.codec import CodecError, encode

_LONGEST = 10_000
"""Characters of test code that are looked at."""


@dataclass(frozen=True)
class Call:
    """A call of a submission's function, and what it must return."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any
    tolerance: float | None = None


def call_of(test: CallTest | AssertTest, entry_point: str | None) -> Call | None:
    """The call that a test is; None for test code that is more than one call and a literal.

    Args:
        test: what is asked.
        entry_point: the function that a ``CallTest`` calls, and the only one that test code sees;
            None: whatever test code leaves undefined.
    """
    if isinstance(test, AssertTest):
        return None if test.setup.strip() else _parsed(test.code, entry_point)
    assert entry_point is not None, "a grade with call tests was checked to have one"
    return Call(entry_point, test.args, test.kwargs, test.expected, test.tolerance)


@functools.lru_cache(maxsize=4096)  # the members of a group are asked the same
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
        return None  # the interpreter inside says what is wrong with it
    if None in named:  # **{...}
        return None
    return Call(name, values, {str(key): value for key, value in named.items()}, expected)

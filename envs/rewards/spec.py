"""Parser of weighted sums of names: ``f1 + 0.1*research_format``.

The syntax is a subset of that of Python: names, calls with literals, numbers as weights, ``+``,
``-``, ``*`` and parentheses. Commas and lists also mean sums. The text is parsed and never
executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Term:
    """A name with its weight and its arguments."""

    weight: float
    name: str
    inner: tuple[tuple[Term, ...], ...] = ()
    """Arguments that are sums of names, such as ``f1 + tags`` in ``gate(f1 + tags)``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that are literals, by name, such as ``ngram=4``."""


def parse_terms(key: str, text: str) -> tuple[Term, ...]:
    """The terms of a sum.

    Args:
        key: name of the setting that holds the text, for messages.
        text: the sum, in the syntax that the module's docstring describes.

    Raises:
        ValueError: the text is malformed.
    """
    try:
        return tuple(_terms(ast.parse(text.strip(), mode="eval").body, 1.0))
    except (SyntaxError, ValueError) as error:
        what = f" ({error})" if not isinstance(error, SyntaxError) else ""
        raise ValueError(
            f"{key} ({text}) must be a sum such as f1 + 0.5*repetition(ngram=4){what}"
        ) from error


def _terms(node: ast.expr, weight: float) -> Iterator[Term]:
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _terms(part, weight)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _terms(left, weight)
            yield from _terms(right, weight)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield from _terms(left, weight)
            yield from _terms(right, -weight)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -weight)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factor, rest = (left, right) if _is_number(left) else (right, left)
            if not _is_number(factor):
                raise ValueError(f"{ast.unparse(node)} multiplies no number")
            yield from _terms(rest, weight * ast.literal_eval(factor))
        case ast.Name(id=name):
            yield Term(weight, name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            yield replace(_call(name, args, keywords), weight=weight)
        case _:
            raise ValueError(f"{ast.unparse(node)} is no name, and no name with options")


def _is_number(node: ast.expr) -> bool:
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(number, ast.Constant) and isinstance(number.value, (int, float))


def _call(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Term:
    options = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ValueError(f"{name} takes options as name=value")
        options[keyword.arg] = ast.literal_eval(keyword.value)
    return Term(1.0, name, tuple(tuple(_terms(arg, 1.0)) for arg in args), options)

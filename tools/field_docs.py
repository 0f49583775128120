"""Docstrings of a dataclass's fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast


def field_docs(config_type: type[Any]) -> dict[str, str]:
    """Docstrings of a dataclass's fields by field name, each as one line, with inherited fields.

    A class without source code, such as one typed into an interpreter, has no such docstrings.
    """
    docs: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        for field, doc in itertools.pairwise(_body(base)):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs


def _body(kind: type[Any]) -> list[ast.stmt]:
    """The syntax trees of a class's statements. Empty if the source code is not available."""
    known = _classes(kind.__module__)
    if kind.__qualname__ in known:
        return known[kind.__qualname__]
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return []
    return cast(ast.ClassDef, ast.parse(textwrap.dedent(source)).body[0]).body


@lru_cache(maxsize=64)
def _classes(module: str) -> Mapping[str, list[ast.stmt]]:
    """For each top-level class of a module, the class's statements. The module is parsed once.

    A class name with two definitions is left out, because the name is ambiguous.
    """
    if module == "__main__":
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    found = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in found)
    return {node.name: node.body for node in found if names[node.name] == 1}

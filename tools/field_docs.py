"""What the fields of a dataclass mean, by the docstrings below them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from typing import Any, cast


def field_docs(config_type: type[Any]) -> dict[str, str]:
    """Each field's attribute docstring in one line, over all base classes.

    A class without a source (typed into an interpreter) has none.
    """
    docs: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = inspect.getsource(base)
        except OSError:
            continue
        tree = ast.parse(textwrap.dedent(source))
        body = cast(ast.ClassDef, tree.body[0]).body
        for field, doc in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs

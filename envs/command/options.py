"""An environment's options as ``option=value`` words."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from envs.env import EnvOptions
from tools.registry import closest


def read_options(kind: type[EnvOptions], words: Sequence[str]) -> dict[str, Any]:
    """The values of ``words``, converted to the types of the options.

    Raises:
        ValueError: a word has no ``=``, names no option, or has a value of another type.
    """
    hints, values = get_type_hints(kind), dict[str, Any]()
    known = [option.name for option in fields(kind)]
    for word in words:
        name, given, text = word.partition("=")
        if not given:
            raise ValueError(f"{word!r} is not of the form option=value")
        if name not in known:
            hint = closest(name, known)
            meant = f" Did you mean {hint!r}?" if hint else ""
            raise ValueError(f"there is no option {name!r}.{meant} Known: {', '.join(known)}.")
        values[name] = _value(name, text, hints[name])
    return values


def _value(name: str, text: str, hint: Any) -> Any:
    if hint is str:
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} ({text}) must be true or false")
        return text.lower() == "true"
    try:
        return hint(text) if hint in (int, float) else ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        raise ValueError(f"{name} ({text}) must be of type {wanted}") from error

"""Functions of the user's own, as settings name them: ``agent.py:play``, ``package.agent:play``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_REFERENCE = re.compile(r"(?P<module>[^\s:]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>\w+)")


def is_reference(text: str) -> bool:
    """Whether a text names a function: by a file that ends in .py, or by a module."""
    return _REFERENCE.fullmatch(text) is not None


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """The function that a reference names.

    Args:
        reference: ``file.py:function`` or ``package.module:function``.
        key: the setting that holds it, for messages.

    Raises:
        ValueError: there is no such file, module or function, or it fails to import.
    """
    match = _REFERENCE.fullmatch(reference)
    assert match is not None, "ask is_reference first"
    try:
        module = _module(match["module"])
    # The user's module is foreign code: whatever it raises on import is reported as its own.
    except (Exception, SystemExit) as error:
        what = f"{match['module']} fails to import: {type(error).__name__}: {error}"
        raise ValueError(f"{key} ({reference}): {what}") from error
    function = getattr(module, match["name"], None)
    if not callable(function):
        known = sorted(n for n, v in vars(module).items() if inspect.isfunction(v))
        raise ValueError(
            f"{key} ({reference}): {match['module']} has no function {match['name']!r}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return function  # type: ignore[no-any-return]


def source_of(text: str) -> Path | None:
    """The file that holds the function that a text names; None where it names none."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    if match["module"].endswith(".py"):
        return Path(match["module"]).expanduser()
    try:
        spec = importlib.util.find_spec(match["module"])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def _module(name: str) -> ModuleType:
    """A module by its name, or by its file, which is imported once."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    known = f"turnwise_external:{path}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Before it runs: dataclasses look their module up while it does.
        sys.modules[known] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[known]
            raise
    return sys.modules[known]

"""Environments without an id: ``path/to/file.py:MyEnv``, ``package.module:MyEnv``, or a class.

A reference names one. Its full form has the file's absolute path: runs and episodes record that,
so they go on and play again from any folder.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.env import EnvOptions, TextEnv
from tools.references import ReferenceFailure, load_module
from tools.registry import PluginImportError, UnknownNameError, closest

_classes: dict[str, type[TextEnv[Any, Any]]] = {}
"""By full reference, the class as it was imported or given last."""
_given: set[str] = set()
"""References to classes that were given as objects: no file replaces them."""


def is_reference(name: str) -> bool:
    """Whether a name is that of a file's or a module's class; False: it is an id."""
    return ":" in name or name.endswith(".py")


def full_reference(name: str) -> str:
    """A reference with its absolute path and its class; a file that has changed is imported again.

    Args:
        name: ``file.py:MyEnv``, ``file.py`` of a file with one environment, or ``module:MyEnv``.

    Raises:
        UnknownNameError: there is no such file or class.
        PluginImportError: the file fails to import, or the class is no environment.
    """
    if name in _given:
        return name
    source, _, wanted = name.rpartition(":") if ":" in name else (name, "", "")
    if source.endswith(".py"):
        path = Path(source).expanduser().resolve()
        if not path.is_file():
            raise UnknownNameError(f"environment {name!r}: there is no file {path}")
        source = str(path)
    try:
        module = load_module(source)
    except ReferenceFailure as error:
        raise PluginImportError(f"environment {name!r}: {error}") from error
    found = _class_in(module, wanted, name)
    reference = f"{source}:{wanted or found.__qualname__}"
    _classes[reference] = found
    return reference


def class_of(name: str) -> type[TextEnv[Any, Any]]:
    """The class that a reference names, as it was imported or given last.

    Raises:
        UnknownNameError, PluginImportError: as :func:`full_reference`.
    """
    if name not in _classes:
        name = full_reference(name)
    return _classes[name]


def reference_to(given: Callable[..., TextEnv[Any, Any]]) -> str:
    """The full reference to a class that is given as an object.

    Args:
        given: a subclass of TextEnv, or ``functools.partial`` of one: an environment whose
            constructor takes more than options and services.

    Raises:
        PluginImportError: it is neither.
    """
    kind = _bound(given) if isinstance(given, functools.partial) else given
    if not (isinstance(kind, type) and issubclass(kind, TextEnv)):
        raise PluginImportError(
            f"environment {given!r} is neither a subclass of TextEnv nor functools.partial of one"
        )
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    loaded_by_path = kind.__module__ == "__main__" or kind.__module__.startswith("turnwise_")
    source = str(Path(file).resolve()) if loaded_by_path and file.endswith(".py") else ""
    reference = f"{source or kind.__module__}:{kind.__qualname__}"
    _classes[reference] = kind
    _given.add(reference)
    return reference


def short_name(env_id: str) -> str:
    """What an environment is called in the name of a folder: its id, or its class's name."""
    if is_reference(env_id):
        return env_id.rpartition(":")[2].rpartition(".")[2]
    return env_id.replace("/", "-")


def source_files(env_id: str, kind: type[TextEnv[Any, Any]]) -> list[Path] | None:
    """The files that an environment's code stands in: its own, or those of its package.

    None where that cannot be said: of a class that was written in a notebook, or that was given
    with arguments of its own.
    """
    if env_id in _given and getattr(kind, "_arguments", False):
        return None
    try:
        file = Path(inspect.getfile(kind))
    except (TypeError, OSError):
        return None
    if not file.is_file():
        return None
    return [file] if is_reference(env_id) else sorted(file.parent.glob("*.py"))


def _class_in(module: ModuleType, wanted: str, name: str) -> type[TextEnv[Any, Any]]:
    """The environment that a module defines under a name, or its only one.

    Raises:
        UnknownNameError: there is none, or no name was given and there are several.
        PluginImportError: what has the name is no environment.
    """
    own = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, TextEnv)
        and value.__module__ == module.__name__
    ]
    known = f"Its environments: {', '.join(own) or 'none'}."
    if not wanted:
        if len(own) != 1:
            raise UnknownNameError(f"environment {name!r}: name its class, {name}:CLASS. {known}")
        wanted = own[0]
    found: Any = module
    for part in wanted.split("."):
        found = getattr(found, part, None)
    if found is None:
        hint = closest(wanted, own)
        meant = f" Did you mean {hint!r}?" if hint else ""
        what = f"there is no class {wanted!r}.{meant}"
        raise UnknownNameError(f"environment {name!r}: {what} {known}")
    if not (isinstance(found, type) and issubclass(found, TextEnv)):
        raise PluginImportError(
            f"environment {name!r}: {wanted} is no subclass of envs.TextEnv. {known}"
        )
    return found


def _bound(factory: functools.partial[Any]) -> Any:
    """A class whose constructor has the arguments of a partial call."""
    if not isinstance(factory.func, type):
        return factory
    base: Any = factory.func

    def __init__(self: Any, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        base.__init__(self, *factory.args, options, services=services, **factory.keywords)

    same = {key: getattr(base, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {"__init__": __init__, "_arguments": True, **same})

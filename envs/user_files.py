"""Environments without an id: ``path/to/file.py:MyEnv``, ``package.module:MyEnv``, or a class.

Such a text is called a reference. A full reference contains the file's absolute path. Runs and
episodes record it, so that they can be resumed and replayed from any folder.
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
"""The newest class of each full reference."""
_objects: set[str] = set()
"""References to classes that were passed as objects. No file is imported for them."""


def is_reference(name: str) -> bool:
    """Whether a name refers to a class in a file or module, rather than being an id."""
    return ":" in name or name.endswith(".py")


def full_reference(name: str) -> str:
    """The full reference, with absolute path and class. Imports the file again if it changed.

    Args:
        name: ``file.py:MyEnv``, ``module:MyEnv``, or ``file.py`` if the file has one environment.

    Raises:
        UnknownNameError: there is no such file or class.
        PluginImportError: the file fails to import, or the class is no environment.
    """
    if name in _objects:
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
    """The newest class of a reference.

    Raises:
        UnknownNameError, PluginImportError: as :func:`full_reference`.
    """
    if name not in _classes:
        name = full_reference(name)
    return _classes[name]


def reference_to(factory: Callable[..., TextEnv[Any, Any]]) -> str:
    """The full reference to a class that was passed as an object.

    Args:
        factory: a subclass of TextEnv. If its constructor takes more than options and services, a
            ``functools.partial`` that binds the other arguments.

    Raises:
        PluginImportError: ``factory`` is neither.
    """
    kind = _bound(factory) if isinstance(factory, functools.partial) else factory
    if not (isinstance(kind, type) and issubclass(kind, TextEnv)):
        raise PluginImportError(
            f"environment {factory!r} is neither a subclass of TextEnv nor functools.partial of one"
        )
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    loaded_by_path = kind.__module__ == "__main__" or kind.__module__.startswith("turnwise_")
    source = str(Path(file).resolve()) if loaded_by_path and file.endswith(".py") else ""
    reference = f"{source or kind.__module__}:{kind.__qualname__}"
    _classes[reference] = kind
    _objects.add(reference)
    return reference


def is_importable(env_id: str) -> bool:
    """Whether another process finds the environment by name, unlike a class of a notebook."""
    return not env_id.startswith("__main__:") and "<locals>" not in env_id


def short_name(env_id: str) -> str:
    """An environment's name for folder names: its id, or the name of its class."""
    if is_reference(env_id):
        return env_id.rpartition(":")[2].rpartition(".")[2]
    return env_id.replace("/", "-")


def source_files(env_id: str, kind: type[TextEnv[Any, Any]]) -> list[Path] | None:
    """The source files of an environment: its own file, or all files of its package.

    Returns None if the files are unknown: for a class from a notebook, or for a
    ``functools.partial``, whose arguments are in no file.
    """
    if env_id in _objects and getattr(kind, "_arguments", False):
        return None
    try:
        file = Path(inspect.getfile(kind))
    except (TypeError, OSError):
        return None
    if not file.is_file():
        return None
    return [file] if is_reference(env_id) else sorted(file.parent.glob("*.py"))


def _class_in(module: ModuleType, wanted: str, name: str) -> type[TextEnv[Any, Any]]:
    """The environment with this name in a module, or the module's only environment.

    Raises:
        UnknownNameError: the module has no such class, or has several and no name selects one.
        PluginImportError: the named object is not an environment.
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
    if found is None and not is_importable(name):
        raise UnknownNameError(
            f"environment {name!r} exists only in the notebook or program that defines it: there, "
            f"give the class, env={short_name(name)}"
        )
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
    """A subclass whose constructor passes on the arguments that a ``functools.partial`` binds."""
    if not isinstance(factory.func, type):
        return factory
    base: Any = factory.func

    def __init__(self: Any, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        base.__init__(self, *factory.args, options, services=services, **factory.keywords)

    same = {key: getattr(base, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {"__init__": __init__, "_arguments": True, **same})

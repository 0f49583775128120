"""Registries of objects by name, for tools, environments, rewards and other kinds.

A plug-in is a Python entry point in a group such as ``turnwise.tools``, ``turnwise.envs`` or
``turnwise.rewards``. A plug-in is imported only when its name is used, so a broken plug-in affects
no other name.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.references import importing

logger = logging.getLogger(__name__)

_MOST_LISTED = 8


class UnknownNameError(LookupError):
    """Raised when a name is not registered; the message lists the known names."""


class PluginImportError(ImportError):
    """Raised when a plug-in's object cannot be imported.

    The message names the plug-in's distribution.
    """


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to ``name``, or None if none is similar.

    A known name that starts with ``name`` and a hyphen is preferred: ``vllm-server`` for ``vllm``.
    """
    known = list(known)
    longer = [k for k in known if len(name) > 2 and k.startswith(f"{name}-")]
    found = longer or difflib.get_close_matches(name, known, n=1, cutoff=0.55)
    return found[0] if found else None


def installed(group: str) -> metadata.EntryPoints:
    """The entry points of a group, of all installed distributions.

    All groups share one search of the folders in ``sys.path``. A changed folder is searched again.
    """
    changed = []
    for folder in sys.path:
        with suppress(OSError):
            changed.append((folder, Path(folder).stat().st_mtime_ns))
    found: metadata.EntryPoints = _entry_points(tuple(changed)).select(group=group)
    return found


@lru_cache(maxsize=1)
def _entry_points(changed: tuple[tuple[str, int], ...]) -> Any:
    """All entry points. ``changed`` has the folders and the times of their last change."""
    return metadata.entry_points()


class Registry:
    """Objects by name, which this process registered or an installed entry point advertises.

    Args:
        kind: noun for the registered objects in messages, such as "tool" or "environment".
        group: the entry-point group in which installed distributions advertise objects.
        form: pattern that an advertised name must match, or None for any name.
    """

    def __init__(self, kind: str, group: str, form: re.Pattern[str] | None = None) -> None:
        self.kind = kind
        self.group = group
        self.form = form
        self._objects: dict[str, Any] = {}
        self._files: dict[str, ModuleType] = {}
        """For each registered name, the module of the user's file that registered the name, if any.
        """
        self._lazy: dict[str, metadata.EntryPoint] = {}
        self._contested: dict[str, list[str]] = {}
        """For each name that several distributions advertise for different objects: these
        distributions."""
        self._scanned = False
        self.replaced = 0
        """Number of times that a newer version replaced a registered object."""

    def register(self, name: str, target: Any) -> None:
        """Register an object, or a text ``"module:attribute"``, which is imported at its first use.

        A file that is imported again, or a notebook's cell that is run again, replaces the objects
        that the file or cell registered before.

        Raises:
            ValueError: another object has the name, or a text is not ``"module:attribute"``.
        """
        if isinstance(target, str):
            if target.count(":") != 1:
                raise ValueError(f"{self.kind} {name!r}: {target!r} must be 'module:attribute'")
            known: Any = self._lazy[name].value if name in self._lazy else target
            if known != target or name in self._objects:
                raise ValueError(self._taken(name))
            self._lazy[name] = metadata.EntryPoint(name, target, self.group)
        elif name in self._lazy or not self._may_be(name, target):
            raise ValueError(self._taken(name))
        else:
            self.replaced += self._objects.get(name, target) is not target
            self._objects[name] = target
            if (module := importing.get()) is not None:
                self._files[name] = module

    def names(self) -> list[str]:
        """All names, sorted: those registered in this process and those of installed plug-ins."""
        self._scan()
        return sorted({*self._objects, *self._lazy})

    def get(self, name: str) -> Any:
        """The object called ``name``, imported at first use.

        Raises:
            UnknownNameError: the name is not registered.
            PluginImportError: the object fails to import, or two distributions advertise the name.
        """
        if name not in self._objects:
            if name not in self._lazy:
                self._scan()
            if name not in self._lazy:
                raise self.unknown(name, self.names())
            if name in self._contested:
                owners = " and by ".join(self._contested[name])
                raise PluginImportError(
                    f"{self.kind} {name!r} is advertised by {owners}: uninstall all but one"
                )
            self._objects[name] = self._load(self._lazy[name])
        return self._objects[name]

    def owner(self, name: str) -> str:
        """The distribution that advertises a name, or "" if it was registered in this process."""
        self._scan()
        found = self._lazy.get(name)
        return found.dist.name if found is not None and found.dist is not None else ""

    def unknown(self, name: str, known: Iterable[str]) -> UnknownNameError:
        """The exception for a name that is not among ``known``."""
        known = list(known)
        hint = closest(name, known)
        meant = f" Did you mean {hint!r}?" if hint else ""
        return UnknownNameError(
            f"unknown {self.kind} {name!r}.{meant} Known: {_listed(known) or 'none'}. "
            f"Others come by installing a package with the entry-point group {self.group!r}."
        )

    def _may_be(self, name: str, target: Any) -> bool:
        """Whether a name is free, or belongs to ``target`` or to an older version of ``target``."""
        if name not in self._objects or self._objects[name] is target:
            return True
        before, now = self._files.get(name), importing.get()
        if before is not None and now is not None:
            return before is not now and before.__name__ == now.__name__
        cell = _cell_name(target)
        return cell is not None and cell == _cell_name(self._objects[name])

    def _taken(self, name: str) -> str:
        return f"{self.kind} {name!r} is registered already: choose another name"

    def _scan(self) -> None:
        """Read the entry points of installed distributions at the first call.

        Names that this process registered take precedence over entry points.
        """
        if self._scanned:
            return
        self._scanned = True
        given = {*self._objects, *self._lazy}
        for found in installed(self.group):
            name, claim = found.name, f"{self.kind} {found.name!r}, advertised by {_owner(found)},"
            if name in given:
                logger.warning("%s is left out: the name is registered already", claim)
            elif self.form is not None and not self.form.fullmatch(name):
                logger.warning(
                    "%s is left out: the name does not match %s", claim, self.form.pattern
                )
            elif name not in self._lazy:
                self._lazy[name] = found
            elif found.value != self._lazy[name].value:
                claimed = self._contested.setdefault(name, [_owner(self._lazy[name])])
                claimed.append(_owner(found))

    def _load(self, entry_point: metadata.EntryPoint) -> Any:
        try:
            return entry_point.load()
        # A plug-in's module is foreign code: any exception of its import is the plug-in's.
        except (Exception, SystemExit) as error:
            raise PluginImportError(
                f"{self.kind} {entry_point.name!r}, advertised by {_owner(entry_point)} as "
                f"{entry_point.value!r}, fails to import: {type(error).__name__}: {error}. "
                f"Fix or uninstall it; nothing else is affected."
            ) from error


def build(kind: str, name: str, factory: Any, options: Mapping[str, Any]) -> Any:
    """Return ``factory(**options)``, after checking the names of the options.

    Raises:
        TypeError: the factory cannot be called, has no such option, or lacks a required one.
    """
    if not callable(factory):
        what = f"neither a {kind.capitalize()} nor something that makes one"
        raise TypeError(f"{kind} {name!r} is {factory!r}: {what}")
    parameters = inspect.signature(factory).parameters
    for option in options:
        if option not in parameters:
            hint = closest(option, parameters)
            meant = f" Did you mean {hint!r}?" if hint else ""
            known = ", ".join(parameters) or "none"
            raise TypeError(f"{kind} {name!r} has no option {option!r}.{meant} Known: {known}.")
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise TypeError(f"{kind} {name!r} needs the option {parameter.name!r}")
    return factory(**options)


def _cell_name(target: Any) -> str | None:
    """The qualified name of an object that a notebook or script defines; None for other objects."""
    name = getattr(target, "__qualname__", None)
    here = getattr(target, "__module__", None) == "__main__"
    return name if here and isinstance(name, str) and "<" not in name else None


def _listed(names: Iterable[str]) -> str:
    """The names, sorted and joined.

    A family ``family/...`` with over 8 names appears as a count.
    """
    families = Counter(name.split("/")[0] for name in names if "/" in name)
    large = {family: count for family, count in families.items() if count > _MOST_LISTED}
    shown = [name for name in names if name.split("/")[0] not in large]
    return ", ".join(sorted([*shown, *(f"{f}/... ({count})" for f, count in large.items())]))


def _owner(entry_point: metadata.EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else "this process"

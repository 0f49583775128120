"""Names for things that plug in: tools, environments and rewards share this one mechanism.

A plug-in is a Python entry point in one of the groups ``turnwise.tools``, ``turnwise.envs`` and
``turnwise.rewards``. It is imported when it is asked for by name, never before, so a broken one
breaks only itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import metadata
from typing import Any


class UnknownNameError(LookupError):
    """Raised when a name is registered by nobody; the message lists what exists."""


class PluginImportError(ImportError):
    """Raised when the plug-in that owns a name cannot be imported; names its distribution."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None where none is alike."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.55)
    return found[0] if found else None


class Registry:
    """Objects by name: registered in this process, or advertised by an installed entry point.

    Args:
        kind: what is registered, for messages ("tool", "environment").
        group: the entry-point group that installed distributions advertise under.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._registered: dict[str, Any] = {}
        self._advertised: dict[str, metadata.EntryPoint] | None = None

    def register(self, name: str, obj: Any) -> None:
        """Give ``obj`` a name in this process. A name cannot be given to two objects.

        Raises:
            ValueError: when the name belongs to something else.
        """
        if self._registered.get(name, obj) is not obj:
            raise ValueError(f"{self.kind} {name!r} is registered already: choose another name")
        self._registered[name] = obj

    def names(self) -> list[str]:
        """Every name, sorted: registered here or installed."""
        return sorted({*self._registered, *self._entry_points()})

    def get(self, name: str) -> Any:
        """The object called ``name``, imported now if it is a plug-in.

        Raises:
            UnknownNameError: nobody registered the name.
            PluginImportError: its plug-in fails to import.
        """
        if name not in self._registered:
            self._registered[name] = self._load(name)
        return self._registered[name]

    def unknown(self, name: str, known: Iterable[str]) -> UnknownNameError:
        """The error for a name that is not among ``known``."""
        known = sorted(known)
        hint = closest(name, known)
        meant = f" Did you mean {hint!r}?" if hint else ""
        return UnknownNameError(
            f"unknown {self.kind} {name!r}.{meant} Known: {', '.join(known) or 'none'}. "
            f"Others come by installing a package with the entry-point group {self.group!r}."
        )

    def _entry_points(self) -> dict[str, metadata.EntryPoint]:
        if self._advertised is None:
            self._advertised = {e.name: e for e in metadata.entry_points(group=self.group)}
        return self._advertised

    def _load(self, name: str) -> Any:
        entry_point = self._entry_points().get(name)
        if entry_point is None:
            raise self.unknown(name, self.names())
        try:
            return entry_point.load()
        # A plug-in's module is foreign code: whatever it raises on import is reported as its own.
        except Exception as error:
            owner = entry_point.dist.name if entry_point.dist else "an unnamed distribution"
            raise PluginImportError(
                f"{self.kind} {name!r} is advertised by {owner} as {entry_point.value!r}, which "
                f"fails to import: {type(error).__name__}: {error}. Fix or uninstall {owner}."
            ) from error

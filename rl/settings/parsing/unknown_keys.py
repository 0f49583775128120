"""Errors for names and keys that do not exist, with did-you-mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.errors import UsageError
from rl.settings.parsing.renamed_keys import RENAMED, elsewhere
from tools.registry import closest

CLIP = ("clip", "clip_range", "cliprange", "clip_ratio", "clip_eps", "epsilon")
"""Other trainers' names for the clipping bounds of the probability ratio. turnwise's keys are
``algo.surrogate.clip_...`` of the chosen surrogate."""


def unknown(kind: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> UsageError:
    """The error for a name that is not among ``known``, with did-you-mean."""
    leaf = name.rpartition(".")[2]
    bounds = [k for k in known if k.startswith("algo.surrogate.clip_")]
    if leaf in CLIP and bounds:
        meant = " and ".join(map(repr, bounds))
        return UsageError(f"unknown key {name!r}. Did you mean {meant}? --help=all lists them all.")
    if kind == "key" and (meant := elsewhere(name, known)):
        return UsageError(f"unknown key {name!r}. {meant} --help=all lists them all.")
    leaf = name.rsplit(".", 1)[-1]
    same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    # `lr` means the run's key, not the warm start's.
    same_leaf.sort(key=lambda k: k.startswith("tiny."))
    hint = next(iter(same_leaf), None) or closest(name, known)
    known_names = "--help=all lists them all." if kind == "key" else f"One of: {', '.join(known)}."
    return UsageError(f"unknown {kind} {name!r}.{_meant(hint)} {known_names}")


def renamed_key(name: str) -> str:
    """The error message for a key that has been renamed, or "" for any other key."""
    return f"unknown key {name!r}: it is called {RENAMED[name]!r} now" if name in RENAMED else ""


def unknown_option(name: str, choice: str, options: Sequence[str]) -> str:
    """The error for an option that a chosen plug-in does not have.

    Args:
        name: the whole key.
        choice: the chosen plug-in as a word of the command line, such as ``algo.surrogate=gspo``.
        options: the whole keys of the plug-in's options.
    """
    group, _, option = name.rpartition(".")
    names = [key.removeprefix(f"{group}.") for key in options]
    hint = closest(option, names)
    meant = _meant(f"{group}.{hint}" if hint else None)
    return f"unknown key {name!r}.{meant} {choice} has {', '.join(names) or 'no options'}."


def _meant(hint: str | None) -> str:
    return f" Did you mean {hint!r}?" if hint else ""

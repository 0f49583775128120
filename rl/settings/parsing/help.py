"""The text of ``--help``."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import textwrap
import typing
from collections.abc import Mapping
from typing import Any, Literal

from chz.tiepin import type_repr

from rl.settings.parsing.choice import Choice
from rl.settings.parsing.main_keys import FEW, MAIN_KEYS
from rl.settings.parsing.schema import MODULE, Named

POSITIONAL = "run"
"""Key whose value can stand without ``run=``, in commands that have it: ``rl.status RUN``."""


def hidden_keys(config_type: type[Any]) -> set[str]:
    """Keys that help and suggestions do not show."""
    choices = [(f.name, f.metadata.get("choice")) for f in dataclasses.fields(config_type)]
    return {f"{name}.{key}" for name, choice in choices if choice for key in choice.hidden}


def help_text(
    blueprint: Any,
    config_type: type[Any],
    command: str,
    presets: Mapping[str, Mapping[str, str]],
    whole: bool,
) -> str:
    """The help text for the choices made so far, one key per line.

    Args:
        blueprint: chz's object for the words of the command line.
        config_type: the settings.
        command: the start of the command line.
        presets: named settings.
        whole: whether to show every key. If False, the help shows the main keys, the keys that the
            user set, and the keys of choices that the user made.
    """
    hidden = hidden_keys(config_type)
    parameters = {
        key: parameter
        for key, parameter in blueprint._make_lazy().all_params.items()
        if key and key not in hidden and f"{MODULE}:" not in type_repr(parameter.type)
    }
    given = {key: blueprint._arg_map.get_kv(key) for key in parameters}
    shown = list(parameters)
    if not whole and len(parameters) > FEW:
        chosen = [key for key in parameters if given[key] and choice_of(parameters[key])]
        shown = [
            key
            for key in parameters
            if key in MAIN_KEYS or given[key] or key.split(".")[0] in chosen
        ]
    rows = [_row(key, parameters[key], given[key]) for key in shown]
    rows.append(
        ("config", "", "A TOML file of settings, or a run's folder; the command line overrides it.")
    )
    rows.append(("preset", "", f"Named settings: {', '.join(sorted(presets)) or 'none'}."))
    names = {field.name for field in dataclasses.fields(config_type)}
    first = f"{POSITIONAL.upper()} " if POSITIONAL in names else ""
    lines = [f"usage: {command} {first}key=value ...", "", inspect.getdoc(config_type) or "", ""]
    lines += _in_columns(rows)
    if len(shown) < len(parameters):
        left = len(parameters) - len(shown)
        lines += ["", f"{left} more keys: --help=all. An environment's own keys: env=NAME --help."]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _in_columns(rows: list[tuple[str, str, str]]) -> list[str]:
    """Keys, values and descriptions in three columns, wrapped to the terminal's width."""
    key_width = min(24, max(len(key) for key, _, _ in rows))
    value_width = min(34, max(len(value) for _, value, _ in rows))
    indent = " " * (key_width + value_width + 6)
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    lines: list[str] = []
    for key, value, doc in rows:
        start = f"  {key:<{key_width}}  {value:<{value_width}}"
        lines += textwrap.wrap(
            f"{start}  {doc}",
            width,
            subsequent_indent=indent,
            drop_whitespace=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [start]
    return lines


def _row(key: str, parameter: Any, given: Any) -> tuple[str, str, str]:
    """A key, its value, and its description."""
    choice, doc = choice_of(parameter), str(parameter.doc)
    if given is not None:
        value = f"{getattr(given.value, 'value', given.value)} ({given.layer_name})"
    elif parameter.default is None:
        value = parameter.meta_factory.default if choice else ""
    else:
        value = parameter.default.to_help_str()
    names = choice.names() if choice else _values(parameter.type)
    if names and not all(name in doc for name in names):
        doc = f"{doc} One of: {', '.join(names)}."
    return key, value, doc.strip()


def choice_of(parameter: Any) -> Choice | None:
    """The choice that belongs to one of chz's parameters, or None."""
    factory = parameter.meta_factory
    return factory.choice if isinstance(factory, Named) else None


def _values(hint: Any) -> list[str]:
    """The values of a Literal, or an empty list for another type."""
    return list(map(str, typing.get_args(hint))) if typing.get_origin(hint) is Literal else []

"""Constructors of settings that accept Python objects, dicts and texts.

``TrainConfig(env="math", steps=3, optimizer={"lr": 1e-4})`` has the defaults, the checks and the
messages of ``python -m rl.train env=math steps=3 optimizer.lr=1e-4``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from envs.env import TextEnv
from envs.user_files import reference_to
from rl.errors import UsageError
from rl.settings.parsing.command_line import resolve
from rl.settings.parsing.files import as_values, as_word, check_given, flatten, read_run
from rl.settings.parsing.plain import to_plain
from tools.registry import PluginImportError

C = TypeVar("C", bound=type[Any])


def from_python(config_type: C) -> C:
    """Decorate a dataclass of settings with a constructor for Python code.

    An omitted field gets the command line's default. A choice is passed as a name, or as a dict
    with a "name" and the choice's own settings. An environment can also be a class. A group of
    settings is a dict. Keys can have dots, as in ``**{"env.max_turns": 2}``.

    Raises:
        UsageError: a setting is wrong. The message is the same as on the command line.
    """
    kind: Any = config_type
    by_fields = kind.__init__

    @functools.wraps(by_fields)
    def init(self: Any, **given: Any) -> None:
        by_fields(self, **_complete(type(self), given))

    kind.__init__ = init
    return config_type


def _complete(config_type: type[Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A value for every field of a dataclass, from the passed values and the defaults."""
    fields = dataclasses.fields(config_type)
    hints = get_type_hints(config_type)
    grouped = [f.name for f in fields if "choice" in f.metadata or _is_group(hints[f.name])]
    if given.keys() == {f.name for f in fields} and all(
        isinstance(given[name], hints[name]) for name in grouped
    ):
        return given
    values: dict[str, Any] = {}
    for key, value in given.items():
        values |= (own := _values(key, value))
        if not dataclasses.is_dataclass(value):
            check_given(own)
    layers = _run_of(values) if "resume" in hints else {}
    made = resolve(config_type, {**layers, "Python": values})
    return {f.name: getattr(made, f.name) for f in fields}


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _run_of(values: dict[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The settings of the run whose folder ``resume`` names, or no settings.

    Sets ``out`` and ``resume`` in ``values``, so that the run continues in its own folder.
    """
    run = values.get("resume", "no")
    if run in ("no", "auto"):
        return {}
    if values.get("out", run) != run:
        raise UsageError(
            f"out ({values['out']}) must be left out with resume={run}: it names the folder"
        )
    values |= {"out": run, "resume": "auto"}
    return {f"the run {run}": read_run(run, "resume")}


def _values(key: str, value: Any) -> dict[str, Any]:
    """A setting's values, by dotted keys.

    Raises:
        UsageError: ``value`` contains an environment that is neither a name nor a class.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in as_values({key: to_plain(value)}).items()}
    if isinstance(value, Mapping):
        named = {k.removesuffix(".name"): v for k, v in flatten({key: value}).items()}
        return {k: _plain(v) for k, v in named.items()}
    return {key: _plain(value)}


def _plain(value: Any) -> Any:
    """A value as text of the command line. A value that has no such text is returned unchanged."""
    if isinstance(value, TextEnv):
        what = f"give the class, {type(value).__name__}, and the options as a dict"
        raise UsageError(f"env ({value!r}) is an environment object: {what}")
    if isinstance(value, (type, functools.partial)):
        try:
            return reference_to(value)
        except PluginImportError as error:
            raise UsageError(str(error)) from error
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(row, Mapping) for row in value):
            return json.dumps([dict(row) for row in value])  # Rows of tasks.
        plain = [_plain(element) for element in value]
        written = all(isinstance(element, str) and "," not in element for element in plain)
        return ",".join(plain) if written else tuple(value)
    if isinstance(value, (str, Path, bool, numbers.Real)):
        return as_word(value)
    return value

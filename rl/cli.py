"""``key=value`` command lines for frozen dataclasses: typed, with help, presets and run files.

Layers, weakest first: the defaults, what a chosen name brings along, the run of ``resume=FOLDER``,
``config=run.toml``, ``preset=NAME``, the command line. Python code has its own in the place of the
last one.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import chz
from chz.blueprint import Castable, ConstructionException
from chz.tiepin import type_repr

from rl.errors import UsageError
from rl.settings.choice import Choice
from rl.settings.files import read_run, read_settings
from rl.settings.main_keys import FEW, MAIN_KEYS, of_another_command
from rl.settings.schema import MODULE, Named, built, chz_class
from rl.settings.unknown import ELSEWHERE, moved, unknown, unknown_option
from tools.registry import PluginImportError, UnknownNameError

C = TypeVar("C")


def parse(
    config_type: type[C],
    argv: Sequence[str],
    *,
    command: str,
    presets: Mapping[str, Mapping[str, str]],
) -> C:
    """Read a command line into ``config_type``.

    Args:
        config_type: a frozen dataclass; nested ones and :class:`Choice` fields are followed.
        argv: ``key=value`` words, ``--help`` or ``--help=all``; where there is a key ``run``, its
            value alone.
        command: what the user typed before them, for the help.
        presets: named settings, each from key to text.

    Raises:
        UsageError: an unknown key or name, or a value of the wrong type or out of range.
        SystemExit: after printing the help.
    """
    words = _Words(argv, _names(config_type))
    layers: dict[str, Mapping[str, str]] = {}
    if words.run is not None:
        layers[f"the run {words.run}"] = read_run(words.run, "resume")
    if words.config is not None:
        layers[words.config] = read_settings(words.config)
    if words.preset is not None:
        if words.preset not in presets:
            raise unknown("preset", words.preset, presets)
        layers[f"preset {words.preset}"] = presets[words.preset]
    layers["the command line"] = dict(words.values)
    blueprint = _blueprint(config_type, layers)
    if words.help:
        with _in_one_line(blueprint, config_type):
            shown = _help(blueprint, config_type, command, presets, words.help == "all")
        sys.stdout.write(shown)
        raise SystemExit(0)
    return _made(blueprint, config_type)


def resolve(config_type: type[C], layers: Mapping[str, Mapping[str, Any]]) -> C:
    """Settings from layers of values, the weakest first, as a command line's are.

    Args:
        config_type: a frozen dataclass.
        layers: by name, each from key to a text, which is read as a word of the command line is,
            or to a value of the setting's own type.

    Raises:
        UsageError: an unknown key or name, or a value of the wrong type or out of range.
    """
    return _made(_blueprint(config_type, layers), config_type)


def _blueprint(config_type: type[Any], layers: Mapping[str, Mapping[str, Any]]) -> Any:
    """Chz's object for what is given, with the layers that chosen names bring along."""
    blueprint: Any = chz.Blueprint(chz_class(config_type, config_type, {}))
    for name, layer in {**_brought(config_type, layers), **layers}.items():
        given = {k: Castable(v) if isinstance(v, str) else v for k, v in layer.items()}
        blueprint.apply(given, layer_name=name)
    return blueprint


def _made(blueprint: Any, config_type: type[C]) -> C:
    with _in_one_line(blueprint, config_type):
        return typing.cast(C, built(blueprint.make()))


@contextmanager
def _in_one_line(blueprint: Any, config_type: type[Any]) -> Iterator[None]:
    """Have whatever is wrong with settings said in one line.

    Raises:
        UsageError: something is.
    """
    try:
        yield
    except UsageError:
        raise
    except TypeError as error:
        # chz's, of a value that Python code gave; of any other the traceback is wanted.
        if not str(error).startswith("Expected "):
            raise
        raise UsageError(_one_line(str(error))) from error
    except (UnknownNameError, PluginImportError, ConstructionException, ValueError) as error:
        raise UsageError(_one_line(str(error))) from error
    except _ENTRYPOINT_ERRORS as error:
        raise UsageError(_explain(error, blueprint, config_type)) from error


def _hidden(config_type: type[Any]) -> set[str]:
    """The keys that are not offered."""
    choices = [(f.name, f.metadata.get("choice")) for f in dataclasses.fields(config_type)]
    return {f"{name}.{key}" for name, choice in choices if choice for key in choice.hidden}


def _names(config_type: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(config_type)}


_ENTRYPOINT_ERRORS = (
    chz.blueprint.ExtraneousBlueprintArg,
    chz.blueprint.InvalidBlueprintArg,
    chz.blueprint.MissingBlueprintArg,
)


def _brought(
    config_type: type[Any], layers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """The layers that chosen names bring along, ``layers`` being all that is given."""
    given = {key: text for layer in layers.values() for key, text in layer.items()}
    brought = {}
    for field in dataclasses.fields(config_type):
        choice = field.metadata.get("choice")
        if choice is not None:
            name = given.get(field.name, choice.default)
            if name in choice.brings:
                brought[f"{field.name}={name}"] = choice.brings[name]
    return brought


FLAGS = ("dry_run", "json")
"""Keys that stand for true as a word alone: ``--json``."""
POSITIONAL = "run"
"""The key whose value may stand alone, where a command has it: ``rl.status RUN``."""


class _Words:
    """The command line, taken apart: the keys that choose layers, and the rest."""

    def __init__(self, argv: Sequence[str], keys: set[str]) -> None:
        self.help: Literal["", "main", "all"] = ""
        self.preset: str | None = None
        self.config: str | None = None
        self.run: str | None = None
        """The folder of ``resume=FOLDER``."""
        self.values: list[tuple[str, str]] = []
        for word in argv:
            if word in ("--help", "-h", "help"):
                self.help = self.help or "main"
                continue
            if word in ("--help=all", "--help-all", "help=all"):
                self.help = "all"
                continue
            bare = word.removeprefix("--")
            if "=" not in bare:
                if bare.replace("-", "_") in FLAGS:
                    self.values.append((bare.replace("-", "_"), "true"))
                    continue
                if POSITIONAL in keys and word == bare:
                    if any(key == POSITIONAL for key, _ in self.values):
                        raise UsageError(f"{word!r} is a second run: give one (see --help)")
                    self.values.append((POSITIONAL, word))
                    continue
                raise UsageError(f"{word!r} is not of the form key=value (see --help)")
            key, value = bare.split("=", 1)
            key = key.replace("-", "_")
            if key == "preset":
                self.preset = value
            elif key == "config":
                self.config = value
            elif key == "resume" and "resume" in keys and value not in ("no", "auto"):
                self.run = value
            else:
                self.values.append((key, value))
        if self.run is not None:
            self._go_on(self.run)

    def _go_on(self, run: str) -> None:
        """``resume=FOLDER`` is resume=auto in that folder, with the settings of its run."""
        out = dict(self.values).get("out", run)
        if out != run:
            raise UsageError(f"out ({out}) must be left out with resume={run}: it names the folder")
        self.values += [("out", run), ("resume", "auto")]


def _help(
    blueprint: Any,
    config_type: type[Any],
    command: str,
    presets: Mapping[str, Mapping[str, str]],
    whole: bool,
) -> str:
    """The help text: what follows from the choices made so far, a key per line.

    Args:
        blueprint: of the words given so far.
        config_type: what the command line fills in.
        command: what the user typed before the words.
        presets: named settings.
        whole: every key; False: the main ones, and those of a choice that the user named.
    """
    hidden = _hidden(config_type)
    parameters = {
        key: parameter
        for key, parameter in blueprint._make_lazy().all_params.items()
        if key and key not in hidden and f"{MODULE}:" not in type_repr(parameter.type)
    }
    given = {key: blueprint._arg_map.get_kv(key) for key in parameters}
    shown = list(parameters)
    if not whole and len(parameters) > FEW:
        chosen = [key for key in parameters if given[key] and _choice_of(parameters[key])]
        shown = [
            key
            for key in parameters
            if key in MAIN_KEYS or given[key] or key.split(".")[0] in chosen
        ]
    rows = [_row(key, parameters[key], given[key]) for key in shown]
    rows.append(
        ("config", "", "A TOML file of these settings, or a run's folder; the command line wins.")
    )
    rows.append(("preset", "", f"Named settings: {', '.join(sorted(presets)) or 'none'}."))
    key_width = min(24, max(len(key) for key, _, _ in rows))
    value_width = min(34, max(len(value) for _, value, _ in rows))
    indent = " " * (key_width + value_width + 6)
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    first = f"{POSITIONAL.upper()} " if POSITIONAL in _names(config_type) else ""
    lines = [f"usage: {command} {first}key=value ...", "", inspect.getdoc(config_type) or "", ""]
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
    if len(shown) < len(parameters):
        left = len(parameters) - len(shown)
        lines += ["", f"{left} more keys: --help=all. A choice's own: env=NAME --help."]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _row(key: str, parameter: Any, given: Any) -> tuple[str, str, str]:
    """A key's line of the help: the key, its value, and what it means."""
    choice, doc = _choice_of(parameter), str(parameter.doc)
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


def _choice_of(parameter: Any) -> Choice | None:
    factory = parameter.meta_factory
    return factory.choice if isinstance(factory, Named) else None


def _values(hint: Any) -> list[str]:
    """The values of a Literal; of another type none."""
    return list(map(str, typing.get_args(hint))) if typing.get_origin(hint) is Literal else []


def _explain(error: Exception, blueprint: Any, config_type: type[Any]) -> str:
    """Chz's error as one line; an unknown key gets the keys that are most like it."""
    text = str(error)
    extraneous = re.search(r"Extraneous argument ['\"]([^'\"]+)['\"]", text)
    if extraneous is not None:
        return _unknown_key(extraneous.group(1), blueprint, config_type)
    value = re.search(r"argument (.+?) provided for param '([^']+)'", text)
    expected = re.search(r"Could not cast .*? to (.+)", text)
    if value is not None and expected is not None:
        key = value.group(2)
        if expected.group(1).startswith(f"{MODULE}:"):
            own = f"{key} ({value.group(1)}) has settings of its own: give {key}.KEY=..."
            return moved(key) or own
        return f"{key} ({value.group(1)}) must be {_in_words(expected.group(1))}"
    return _one_line(text)


def _unknown_key(name: str, blueprint: Any, config_type: type[Any]) -> str:
    """What is said of a key that does not exist."""
    parameters, hidden = blueprint._make_lazy().all_params, _hidden(config_type)
    known = [k for k in parameters if k and k not in hidden]
    if moved(name):
        return moved(name)
    if name not in ELSEWHERE and of_another_command(name, known, _names(config_type)):
        return f"unknown key {name!r}. Another command has it; --help=all lists this one's."
    group = name.rpartition(".")[0]
    if "." in group and group in parameters and _choice_of(parameters[group]):
        given = blueprint._arg_map.get_kv(group)
        default = parameters[group].meta_factory.default
        chosen = getattr(given.value, "value", given.value) if given else default
        options = [k for k in known if k.startswith(f"{group}.")]
        return unknown_option(name, f"{group}={chosen}", options)
    return str(unknown("key", name, known))


def _in_words(type_: str) -> str:
    """What a value of this type looks like on a command line."""
    literal = re.fullmatch(r"Literal\[(.*)\]", type_)
    if literal is not None:
        return f"one of {literal.group(1).replace(chr(39), '')}"
    return "true or false" if type_ == "bool" else f"of type {type_}"


def _one_line(text: str) -> str:
    return " ".join(text.split())

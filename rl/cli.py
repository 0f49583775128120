"""``key=value`` command lines for frozen dataclasses: typed, with help, presets and run files.

The dataclasses stay plain; chz, which parses, is met here and nowhere else. Layers, weakest first:
the defaults, what a chosen name brings along, the run of ``resume=FOLDER``, ``config=run.toml``,
``preset=NAME``, the command line.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import chz
from chz.blueprint import Castable, ConstructionException
from chz.factories import MetaFactory
from chz.tiepin import CastError, type_repr

from rl.errors import UsageError
from rl.settings.files import read_run, read_settings
from rl.settings.main_keys import FEW, MAIN_KEYS, of_another_command
from tools.field_docs import field_docs
from tools.registry import PluginImportError, UnknownNameError, closest

C = TypeVar("C")
Build = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Choice:
    """A field whose value is chosen by name and then has fields of its own.

    Args:
        resolve: from a name to (the dataclass that the name stands for, its own defaults, and how
            to build the value from its fields). Raises UnknownNameError for a name it lacks.
        default: the name when none is given.
        names: the names there are, for the help.
        brings: other settings that a name stands for, from key to text.
        hidden: fields that commands set themselves: neither help nor suggestions name them.
    """

    resolve: Callable[[str], tuple[type[Any], Mapping[str, Any], Build]]
    default: str
    names: Callable[[], Sequence[str]]
    brings: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    hidden: tuple[str, ...] = ()


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
    blueprint = chz.Blueprint(_chz_class(config_type, config_type, {}))
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
    for name, layer in {**_brought(config_type, layers), **layers}.items():
        blueprint.apply({k: Castable(v) for k, v in layer.items()}, layer_name=name)
    try:
        if words.help:
            sys.stdout.write(_help(blueprint, config_type, command, presets, words.help == "all"))
            raise SystemExit(0)
        return typing.cast(C, _build(blueprint.make(), ""))
    except UsageError:
        raise
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
    config_type: type[Any], layers: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
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


class _Named(MetaFactory):
    """chz's way to a value chosen by name."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self.choice = choice

    def unspecified_factory(self) -> Callable[..., Any]:
        return self.from_string(self.choice.default)

    def from_string(self, factory: str) -> Callable[..., Any]:
        config_type, defaults, build = self.choice.resolve(factory)
        return _chz_class(config_type, build, defaults)

    def perform_cast(self, value: str) -> Any:
        raise CastError(f"{value!r} names something that has fields of its own")


def _chz_class(
    config_type: type[Any], build: Callable[..., Any], defaults: Mapping[str, Any]
) -> type[Any]:
    """A chz class with the fields of a dataclass; ``_build`` turns its objects into ``build``'s."""
    docs = field_docs(config_type)
    hints = typing.get_type_hints(config_type)
    body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
    for field in dataclasses.fields(config_type):
        hint: Any = hints[field.name]
        arguments: dict[str, Any] = {"doc": docs.get(field.name, "")}
        choice = field.metadata.get("choice")
        if choice is not None:
            hint, arguments["meta_factory"] = object, _Named(choice)
        elif dataclasses.is_dataclass(hint):
            nested = typing.cast("type[Any]", hint)
            hint = _chz_class(nested, nested, field.metadata.get("defaults", {}))
            arguments["blueprint_unspecified"] = hint
        elif field.name in defaults:
            arguments["default"] = defaults[field.name]
        elif field.default is not dataclasses.MISSING:
            arguments["default"] = field.default
        body["__annotations__"][field.name] = hint
        body[field.name] = chz.field(**arguments)
    made = chz.chz(type(config_type.__name__, (), body))
    _BUILDERS[made] = build if build is not config_type else _by_fields(config_type)
    return made


_BUILDERS: dict[type[Any], Build] = {}


def _by_fields(config_type: type[Any]) -> Build:
    return lambda values: config_type(**values)


def _build(value: Any, path: str) -> Any:
    """Turn chz objects, innermost first, into what they stand for."""
    build = _BUILDERS.get(type(value))
    if build is None:
        return value
    prefix = f"{path}." if path else ""
    names = chz.chz_fields(value)
    fields = {name: _build(getattr(value, name), prefix + name) for name in names}
    try:
        return build(fields)
    except UsageError:
        raise
    # The dataclass names its own field first: "clip_high (-1) must be >= 0".
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error


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
        if key and key not in hidden and f"{__name__}:" not in type_repr(parameter.type)
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
    key_width = max(len(key) for key, _, _ in rows)
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
        value = choice.default if choice else ""
    else:
        value = parameter.default.to_help_str()
    names = choice.names() if choice else _values(parameter.type)
    if names and not all(name in doc for name in names):
        doc = f"{doc} One of: {', '.join(names)}."
    return key, value, doc.strip()


def _choice_of(parameter: Any) -> Choice | None:
    factory = parameter.meta_factory
    return factory.choice if isinstance(factory, _Named) else None


def _values(hint: Any) -> list[str]:
    """The values of a Literal; of another type none."""
    return list(map(str, typing.get_args(hint))) if typing.get_origin(hint) is Literal else []


def _explain(error: Exception, blueprint: Any, config_type: type[Any]) -> str:
    """Chz's error as one line; an unknown key gets the keys that are most like it."""
    text = str(error)
    extraneous = re.search(r"Extraneous argument ['\"]([^'\"]+)['\"]", text)
    if extraneous is not None:
        name, hidden = extraneous.group(1), _hidden(config_type)
        known = [k for k in blueprint._make_lazy().all_params if k and k not in hidden]
        if name not in _ELSEWHERE and of_another_command(name, known, _names(config_type)):
            return f"unknown key {name!r}. Another command has it; --help=all lists this one's."
        return str(unknown("key", name, known))
    value = re.search(r"argument (.+?) provided for param '([^']+)'", text)
    expected = re.search(r"Could not cast .*? to (.+)", text)
    if value is not None and expected is not None:
        if expected.group(1).startswith(f"{__name__}:"):
            key = value.group(2)
            return f"{key} ({value.group(1)}) has settings of its own: give {key}.KEY=..."
        return f"{value.group(2)} ({value.group(1)}) must be {_in_words(expected.group(1))}"
    return _one_line(text)


def _in_words(type_: str) -> str:
    """What a value of this type looks like on a command line."""
    literal = re.fullmatch(r"Literal\[(.*)\]", type_)
    if literal is not None:
        return f"one of {literal.group(1).replace(chr(39), '')}"
    return "true or false" if type_ == "bool" else f"of type {type_}"


_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "num_generations": "group_size",
    "batch_size": "prompts",
    "per_device_train_batch_size": "prompts",
    "max_completion_length": "sampling.max_tokens",
    "max_steps": "steps",
    "beta": "algo.kl_coef",
    "output_dir": "out",
}
"""What other trainers call a key of ours."""


def unknown(kind: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> UsageError:
    """The error for a name that is not among ``known``: what was probably meant."""
    leaf = name.rsplit(".", 1)[-1]
    same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    # Whoever says lr means the run's, not the warm start's.
    same_leaf.sort(key=lambda k: k.startswith("tiny."))
    ours = [k for k in known if k == _ELSEWHERE.get(name)]
    # Short for one of them: vllm for vllm-server.
    longer = [k for k in known if len(name) > 2 and k.startswith(f"{name}-")]
    hint = next(iter(ours + same_leaf + longer), None) or closest(name, known)
    meant = f" Did you mean {hint!r}?" if hint else ""
    known_names = "--help=all lists them all." if kind == "key" else f"One of: {', '.join(known)}."
    return UsageError(f"unknown {kind} {name!r}.{meant} {known_names}")


def _one_line(text: str) -> str:
    return " ".join(text.split())

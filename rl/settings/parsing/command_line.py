"""Command lines of ``key=value`` words for frozen dataclasses, with help, presets and files.

Settings come in layers. A later layer overrides an earlier layer. The order is: the defaults, the
settings that a chosen name implies, the run of ``resume=FOLDER``, ``config=run.toml``,
``preset=NAME``, and the command line. From Python code, Python values replace the command line.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import chz
from chz.blueprint import Castable, ConstructionException

from rl.errors import UsageError
from rl.settings.parsing.errors import ENTRYPOINT_ERRORS, explain, one_line
from rl.settings.parsing.files import check_given, read_run, read_settings
from rl.settings.parsing.help import POSITIONAL, help_text
from rl.settings.parsing.schema import built, chz_class
from rl.settings.parsing.unknown_keys import unknown
from tools.registry import PluginImportError, UnknownNameError

C = TypeVar("C")


def parse(
    config_type: type[C],
    argv: Sequence[str],
    *,
    command: str,
    presets: Mapping[str, Mapping[str, str]],
) -> C:
    """Parse a command line into ``config_type``.

    Args:
        config_type: a frozen dataclass. Its fields can be dataclasses or
            :class:`~rl.settings.parsing.choice.Choice` fields.
        argv: ``key=value`` words, ``--help`` or ``--help=all``. The value of a key ``run`` can
            stand without ``run=``.
        command: the start of the command line, for the help.
        presets: settings by the preset's name and then by key.

    Raises:
        UsageError: an unknown key or name, or a value of the wrong type or out of range.
        SystemExit: the help was printed.
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
    for layer in layers.values():
        check_given(layer)
    blueprint = _blueprint(config_type, layers)
    if words.help:
        with _in_one_line(blueprint, config_type):
            shown = help_text(blueprint, config_type, command, presets, words.help == "all")
        sys.stdout.write(shown)
        raise SystemExit(0)
    return _made(blueprint, config_type)


def resolve(config_type: type[C], layers: Mapping[str, Mapping[str, Any]]) -> C:
    """Settings from layers of values, with the checks of a command line.

    Args:
        config_type: a frozen dataclass.
        layers: settings by the layer's name and then by key. A later layer overrides an earlier
            layer. A text is parsed like a word of the command line. Any other value must have the
            setting's own type.

    Raises:
        UsageError: an unknown key or name, or a value of the wrong type or out of range.
    """
    return _made(_blueprint(config_type, layers), config_type)


def _blueprint(config_type: type[Any], layers: Mapping[str, Mapping[str, Any]]) -> Any:
    """Chz's blueprint of these layers and of the settings that chosen names imply."""
    blueprint: Any = chz.Blueprint(chz_class(config_type, config_type, {}))
    for name, layer in {**_implied(config_type, layers), **layers}.items():
        given = {k: Castable(v) if isinstance(v, str) else v for k, v in layer.items()}
        blueprint.apply(given, layer_name=name)
    return blueprint


def _made(blueprint: Any, config_type: type[C]) -> C:
    with _in_one_line(blueprint, config_type):
        return typing.cast(C, built(blueprint.make()))


@contextmanager
def _in_one_line(blueprint: Any, config_type: type[Any]) -> Iterator[None]:
    """Turn errors of settings into a one-line UsageError.

    Raises:
        UsageError: a setting is wrong.
    """
    try:
        yield
    except UsageError:
        raise
    except TypeError as error:
        # Chz's own, about a value from Python code. Any other is a bug and keeps its traceback.
        if not str(error).startswith("Expected "):
            raise
        raise UsageError(one_line(str(error))) from error
    except (UnknownNameError, PluginImportError, ConstructionException, ValueError) as error:
        raise UsageError(one_line(str(error))) from error
    except ENTRYPOINT_ERRORS as error:
        raise UsageError(explain(error, blueprint, config_type)) from error


def _names(config_type: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(config_type)}


def _implied(
    config_type: type[Any], layers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """The layers of settings that the names chosen in ``layers`` imply."""
    given = {key: text for layer in layers.values() for key, text in layer.items()}
    implied = {}
    for field in dataclasses.fields(config_type):
        choice = field.metadata.get("choice")
        if choice is not None:
            name = given.get(field.name, choice.default)
            if name in choice.implies:
                implied[f"{field.name}={name}"] = choice.implies[name]
    if issubclass(config_type, Implies):
        implied["what other settings imply"] = config_type.implied(given)
    return implied


class Implies:
    """Base class of settings whose defaults depend on other settings."""

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        """The defaults that settings ``given`` by key imply, by key."""
        return {}


FLAGS = ("dry_run", "json", "text")
"""Keys that are set to true by a word alone, such as ``--json``."""


class _Words:
    """A command line, split into the keys that choose layers and the other settings."""

    help: Literal["", "main", "all"] = ""
    preset: str | None = None
    config: str | None = None
    run: str | None = None
    """The folder of ``resume=FOLDER``."""

    def __init__(self, argv: Sequence[str], keys: set[str]) -> None:
        self.values: list[tuple[str, str]] = []
        for number, word in enumerate(argv):
            if word in ("--help", "-h", "help"):
                self.help = self.help or "main"
            elif word in ("--help=all", "--help-all", "help=all"):
                self.help = "all"
            elif "=" in word:
                self._add(word, keys)
            else:
                self._add_alone(word, argv[number + 1 :], keys)
        if self.run is not None:
            self._resume(self.run)

    def _add(self, word: str, keys: set[str]) -> None:
        key, value = word.removeprefix("--").split("=", 1)
        key = key.replace("-", "_")
        if key == "preset":
            self.preset = value
        elif key == "config":
            self.config = value
        elif key == "resume" and "resume" in keys and value not in ("no", "auto"):
            self.run = value
        else:
            self.values.append((key, value))

    def _add_alone(self, word: str, following: Sequence[str], keys: set[str]) -> None:
        """Add a word without "=".

        Raises:
            UsageError: the word is neither a flag nor the only run.
        """
        key = word.removeprefix("--").replace("-", "_")
        if key in FLAGS:
            self.values.append((key, "true"))
        elif POSITIONAL in keys and not word.startswith("--"):
            if any(known == POSITIONAL for known, _ in self.values):
                raise UsageError(f"{word!r} is a second run: give one (see --help)")
            self.values.append((POSITIONAL, word))
        else:
            value = following[0] if following else ""
            hint = f": write {key}={value}" if word.startswith("--") and _is_value(value) else ""
            raise UsageError(f"{word!r} is not of the form key=value{hint} (see --help)")

    def _resume(self, run: str) -> None:
        """Apply ``resume=FOLDER``: set resume=auto and use the settings of the folder's run."""
        out = dict(self.values).get("out", run)
        if out != run:
            raise UsageError(f"out ({out}) must be left out with resume={run}: it names the folder")
        self.values += [("out", run), ("resume", "auto")]


def _is_value(word: str) -> bool:
    """Whether a word is probably the value of the option before it: ``--steps 5``."""
    return bool(word) and "=" not in word and not word.startswith("--")

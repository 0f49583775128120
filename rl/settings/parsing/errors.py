"""Explains chz's errors in one line that names the key, the expected value and the fix."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import chz
import chz.blueprint

from rl.settings.parsing.help import choice_of, hidden_keys
from rl.settings.parsing.main_keys import of_another_command
from rl.settings.parsing.renamed_keys import counterpart
from rl.settings.parsing.schema import MODULE, chz_class
from rl.settings.parsing.unknown_keys import renamed_key, unknown, unknown_option

ENTRYPOINT_ERRORS = (
    chz.blueprint.ExtraneousBlueprintArg,
    chz.blueprint.InvalidBlueprintArg,
    chz.blueprint.MissingBlueprintArg,
)
"""Chz's errors about words that the user wrote."""


def explain(error: Exception, blueprint: Any, config_type: type[Any]) -> str:
    """Explain one of chz's errors in one line. For an unknown key, list the most similar keys."""
    text = str(error)
    extraneous = re.search(r"Extraneous argument ['\"]([^'\"]+)['\"]", text)
    if extraneous is not None:
        return _unknown_key(extraneous.group(1), blueprint, config_type)
    missing = re.search(r"Missing required arguments for parameter\(s\): ([\w., ]+)", text)
    if missing is not None:
        names = [name.strip() for name in missing.group(1).split(",")]
        words = " ".join(f"{name}=..." for name in names)
        return f"{' and '.join(names)} must be given: add {words} (see --help)"
    value = re.search(r"argument (.+?) provided for param '([^']+)'", text)
    expected = re.search(r"Could not cast .*? to (.+)", text)
    if value is not None and expected is not None:
        key = value.group(2)
        if expected.group(1).startswith(f"{MODULE}:"):
            return renamed_key(key) or _group(key, value.group(1), config_type)
        return f"{key} ({value.group(1)}) must be {_in_words(expected.group(1))}"
    return one_line(text)


def _group(key: str, value: str, config_type: type[Any]) -> str:
    """The error for a value that stands where a group of settings is."""
    blueprint: Any = chz.Blueprint(chz_class(config_type, config_type, {}))
    first, *others = [k for k in blueprint._make_lazy().all_params if k.startswith(f"{key}.")]
    return f"{key} ({value}) has settings of its own: give {first}=..., or {', '.join(others)}"


def one_line(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())


def _unknown_key(name: str, blueprint: Any, config_type: type[Any]) -> str:
    """The error for a key that does not exist."""
    parameters, hidden = blueprint._make_lazy().all_params, hidden_keys(config_type)
    known = [k for k in parameters if k and k not in hidden]
    if renamed_key(name):
        return renamed_key(name)
    fields = {field.name for field in dataclasses.fields(config_type)}
    has = name.rpartition(".")[2] in known or counterpart(name, known)
    if not has and of_another_command(name, known, fields):
        return f"unknown key {name!r}. Another command has it; --help=all lists this one's."
    group = name.rpartition(".")[0]
    if "." in group and group in parameters and choice_of(parameters[group]):
        given = blueprint._arg_map.get_kv(group)
        default = parameters[group].meta_factory.default
        chosen = getattr(given.value, "value", given.value) if given else default
        options = [k for k in known if k.startswith(f"{group}.")]
        return unknown_option(name, f"{group}={chosen}", options)
    return str(unknown("key", name, known))


def _in_words(type_: str) -> str:
    """Description of a type's values, as a command line writes them."""
    literal = re.fullmatch(r"Literal\[(.*)\]", type_)
    if literal is not None:
        return f"one of {literal.group(1).replace(chr(39), '')}"
    return "true or false" if type_ == "bool" else f"of type {type_}"

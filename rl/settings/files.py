"""Settings in files: TOML files of a user's, and the ``config.json`` that a run leaves behind.

Both become ``key=value`` words, so that every setting meets the command line's own checks.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from tools.registry import closest

RECORD = "config.json"
"""The resolved configuration in a run's folder."""

_NAMES = {
    "env.env_id": "env",
    "algo.name": "algo",
    "algo.row.advantage.name": "algo.advantage",
    "algo.row.surrogate.name": "algo.surrogate",
    "policy.name": "policy",
    "log.name": "log",
}
_INNER = re.compile(r"^(env\.)options\.|^(algo\.)row\.|^(policy\.|log\.)settings\.")


def read_settings(path: str) -> dict[str, str]:
    """The settings of ``config=PATH``: a TOML file, a run's config.json, or a run's folder.

    Raises:
        UsageError: there is no such file, or it is neither.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        if not (file / RECORD).is_file():
            raise UsageError(
                f"config={path} is a folder without a {RECORD}: give a TOML file, or a run's folder"
            )
        file /= RECORD
    if file.suffix == ".json":
        return _recorded(file, f"config={path}")
    return table_words(read_toml(path))


def read_run(folder: str, key: str) -> dict[str, str]:
    """The settings that the run of a folder was started with.

    Args:
        folder: of the run.
        key: the word that named it, for messages.

    Raises:
        UsageError: there is no such folder, or no run was started in it.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UsageError(f"{key}={folder}: there is no such folder.{like_folder(path)}")
    if not (path / RECORD).is_file():
        raise UsageError(f"{key}={folder} holds no run: {path / RECORD} is missing")
    return _recorded(path / RECORD, f"{key}={folder}")


def like_folder(path: Path) -> str:
    """A sentence that names the folder beside ``path`` whose name is most like it; or nothing."""
    if not path.parent.is_dir():
        return ""
    near = closest(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir()])
    return f" Did you mean {str(path.parent / near)!r}?" if near else ""


def read_toml(path: str, key: str = "config") -> dict[str, Any]:
    """The tables of a file.

    Args:
        path: of the file.
        key: the word that named it, for messages.

    Raises:
        UsageError: there is no such file, or it is no TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{key}={path}: there is no such file") from error
    except OSError as error:
        raise UsageError(f"{key}={path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{key}={path} is not valid TOML: {error}") from error


def table_words(table: Mapping[str, Any]) -> dict[str, str]:
    """A table's settings as the command line writes them: all values meet the same checks.

    A choice and its fields are ``{env = "code-sandbox"}``, or ``[env]`` with the name under "name".
    """
    return {k.removesuffix(".name"): as_word(v) for k, v in flatten(table).items()}


def as_values(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values, as config.json holds it, by the command line's keys."""
    return {_INNER.sub(r"\1\2\3", _NAMES.get(k, k)): v for k, v in flatten(plain).items()}


def as_words(plain: Mapping[str, Any]) -> list[str]:
    """A configuration of plain values, as config.json holds it, as words of the command line."""
    return [f"{key}={as_word(value)}" for key, value in as_values(plain).items()]


def as_word(value: Any) -> str:
    """A setting's value as the command line writes it."""
    if isinstance(value, (list, tuple)):
        return ",".join(as_word(element) for element in value)
    return str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables to dotted keys, as the command line writes them."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _recorded(path: Path, told: str) -> dict[str, str]:
    """The words of a config.json.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plain, dict):
            raise TypeError("it holds no table")
    except OSError as error:
        raise UsageError(f"{told}: {path} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{told}: {path} is no configuration of a run ({error})") from error
    return dict(word.split("=", 1) for word in as_words(plain))

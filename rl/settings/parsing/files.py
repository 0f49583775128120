"""Settings in files: a user's TOML files, and the ``config.json`` of a run.

All settings become ``key=value`` words, so that each passes the checks of the command line.
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

EARLIER = {"packing": False}
"""Settings whose default differs from the behaviour of versions that lacked the setting, each with
the value that reproduces this behaviour. If a run's config.json lacks one of these keys, the run is
continued and replayed with the value here."""

DEFAULT_AT_0 = ("optimizer.lr", "optimizer.critic_lr")
"""Settings for which a recorded 0 means the default. A user leaves them out instead."""

_NAMES = {
    "env.env_id": "env",
    "algo.name": "algo",
    "algo.row.advantage.name": "algo.advantage",
    "algo.row.surrogate.name": "algo.surrogate",
    "learner.name": "learner",
    "cluster.name": "cluster",
    "policy.name": "policy",
    "partner.name": "partner",
    "log.name": "log",
}
_INNER = re.compile(
    r"^(env\.)options\.|^(algo\.)row\.|^(learner\.|cluster\.|policy\.|partner\.|log\.)settings\."
)


def read_settings(path: str) -> dict[str, str]:
    """The settings of ``config=PATH``: a TOML file, a run's config.json, or a run's folder.

    Raises:
        UsageError: the path does not exist, or is none of these.
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
    """The settings of a folder's run. :data:`EARLIER` supplies settings that are not recorded.

    Args:
        folder: the run's folder.
        key: the setting that names the folder, for messages.

    Raises:
        UsageError: the folder does not exist, or holds no run.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UsageError(f"{key}={folder}: there is no such folder.{like_folder(path)}")
    if not (path / RECORD).is_file():
        raise UsageError(f"{key}={folder} holds no run: {path / RECORD} is missing")
    earlier = {name: as_word(value) for name, value in EARLIER.items()}
    return earlier | _recorded(path / RECORD, f"{key}={folder}")


def like_folder(path: Path) -> str:
    """A did-you-mean sentence with the folder most similar to ``path``, or "" if there is none."""
    if not path.parent.is_dir():
        return ""
    near = closest(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir()])
    return f" Did you mean {str(path.parent / near)!r}?" if near else ""


def read_toml(path: str, key: str = "config") -> dict[str, Any]:
    """The tables of a TOML file.

    Args:
        path: the file.
        key: the setting that names the file, for messages.

    Raises:
        UsageError: the file does not exist, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{key}={path}: there is no such file") from error
    except OSError as error:
        raise UsageError(f"{key}={path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ""
        if "overwrite a value" in str(error):
            hint = '. Options of a choice are in its table: env = {name = "NAME", OPTION = 1}'
        raise UsageError(f"{key}={path} is not valid TOML: {error}{hint}") from error


def table_words(table: Mapping[str, Any]) -> dict[str, str]:
    """A table's settings as words of the command line, by key.

    A choice is written as ``env = "code-sandbox"``, or as a table ``[env]`` with the chosen name
    under "name".
    """
    return {k.removesuffix(".name"): as_word(v) for k, v in flatten(table).items()}


def as_values(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a plain configuration, as in config.json, by the command line's keys."""
    return {_INNER.sub(r"\1\2\3", _NAMES.get(k, k)): v for k, v in flatten(plain).items()}


def as_words(plain: Mapping[str, Any]) -> list[str]:
    """A plain configuration (as in config.json) as words of the command line."""
    return [
        f"{key}={as_word(value)}"
        for key, value in as_values(plain).items()
        if value != 0 or key not in DEFAULT_AT_0
    ]


def check_given(layer: Mapping[str, Any]) -> None:
    """Check that no setting for which 0 means the default was set to 0 by a user.

    Raises:
        UsageError: one was.
    """
    for key in DEFAULT_AT_0:
        if _is_zero(layer.get(key)):
            raise UsageError(f"{key} ({layer[key]}) must be above 0: leave it out for the default")


def _is_zero(value: Any) -> bool:
    try:
        return float(value) == 0
    except (TypeError, ValueError):
        return False


def as_word(value: Any) -> str:
    """A setting's value as text of the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(as_word(element) for element in value)
    return str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _recorded(path: Path, setting: str) -> dict[str, str]:
    """The settings in a config.json, as texts by the command line's keys.

    Args:
        path: the file.
        setting: key and value that name the file, for messages.

    Raises:
        UsageError: the file cannot be read, or is no configuration.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plain, dict):
            raise TypeError("it holds no table")
    except OSError as error:
        raise UsageError(f"{setting}: {path} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{setting}: {path} is no configuration of a run ({error})") from error
    return dict(word.split("=", 1) for word in as_words(plain))

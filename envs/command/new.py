"""``python -m envs new NAME``: creates an installable package that passes its own tests."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

import envs
from envs.command.template import FILES

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MOST_LETTERS = 24
"""Maximum length of a name, which keeps the generated lines short."""


def write_package(name: str, folder: Path) -> Path:
    """Write a plug-in.

    Args:
        name: lower case, with hyphens.
        folder: parent folder of the package's folder.

    Returns:
        The package's folder.

    Raises:
        ValueError: the name is invalid or taken.
        OSError: the folder cannot be written.
    """
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > MOST_LETTERS or keyword.iskeyword(package):
        raise ValueError(
            f"{name!r} must be a name of a-z, 0-9 and -, a letter first, of at most "
            f"{MOST_LETTERS} letters and no word of Python's: my-env"
        )
    if f"{name}-v0" in envs.ids():
        raise ValueError(f"{name!r}: there is an environment {name}-v0 already")
    if importlib.util.find_spec(package) is not None:
        raise ValueError(f"{name!r}: there is a package {package} already")
    home, words = folder / name, {"name": name, "package": package}
    if home.exists():
        raise ValueError(f"{home} is there already: choose another name, or another folder")
    home.mkdir()
    for path, text in FILES.items():
        file = home / Template(path).substitute(words)
        file.parent.mkdir(exist_ok=True)
        file.write_text(Template(text).substitute(words), encoding="utf-8")
    return home

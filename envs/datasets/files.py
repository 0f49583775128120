"""Data files of a source: one file, a folder of them, or a data set on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.references import depends_on
from tools.registry import closest

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".json")
"""Suffixes of data files. In a folder and on the hub, .json files are ignored if there are files
with any of the other suffixes, because .json files often describe a data set and hold no rows."""
_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?")
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "state.json", "config.json")


class DatasetUnavailable(RuntimeError):
    """Raised when a data set cannot be fetched: no network, no such repository, no access."""


def find_files(source: str | Path) -> list[Path]:
    """The data files of a source: a path to a file or a folder, or a hub id.

    Raises:
        ValueError: the source does not exist, or holds no data files.
        DatasetUnavailable: the hub does not answer, or has no such data set.
    """
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ValueError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
        return [path]
    if path.is_dir():
        depends_on(path)
        inside = {str(file): file for file in sorted(path.rglob("*"))}
        found = [inside[name] for name in data_files(inside)]
        if not found:
            raise ValueError(f"{path}: no file in this folder ends in {', '.join(SUFFIXES)}")
        return found
    match = _HUB_ID.fullmatch(str(source))
    if match and not path.name.endswith(SUFFIXES):
        return _download(match["repository"], match["config"])
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    problem = f"{source}: no such file or folder{where}, and no hub id (owner/name)."
    raise ValueError(problem + _suggestion(path))


def _suggestion(path: Path) -> str:
    """A sentence with the most similar existing file or folder, or "" if none is similar.

    Compares the first missing part of ``path`` with its existing siblings.
    """
    missing = next((part for part in (path, *path.parents) if part.parent.is_dir()), None)
    if missing is None or not os.access(missing.parent, os.R_OK):
        return ""
    near = closest(missing.name, sorted(entry.name for entry in missing.parent.iterdir()))
    meant = missing.parent / (near or "") / path.relative_to(missing)
    return f" Did you mean {str(meant)!r}?" if near and meant.exists() else ""


def data_files(names: Iterable[str]) -> list[str]:
    """The names of files that hold rows; files that only describe a data set are left out."""
    known = [name for name in names if name.endswith(SUFFIXES)]
    others = [name for name in known if not name.endswith(".json")]
    return others or [name for name in known if Path(name).name not in _DESCRIPTIONS]


def _download(repository: str, config: str | None) -> list[Path]:
    """The files of a hub data set or of one of its folders, from the cache or the hub."""
    try:
        # Imported here: the import takes longer than making an environment may.
        import huggingface_hub
    except ImportError as error:
        raise DatasetUnavailable(
            f"{repository}: needs huggingface-hub: pip install 'turnwise[data]', or give a file"
        ) from error
    try:
        listed = huggingface_hub.HfApi().list_repo_files(repository, repo_type="dataset")
        wanted = _wanted(repository, config, listed)
        return [
            Path(huggingface_hub.hf_hub_download(repository, name, repo_type="dataset"))
            for name in wanted
        ]
    except _NoSuchFiles:
        raise
    # The exceptions of a missing network depend on the version of huggingface-hub.
    except Exception as error:
        raise DatasetUnavailable(
            f"{repository}: no such file or folder, and the hub does not give it "
            f"({type(error).__name__}: {error})"
        ) from error


class _NoSuchFiles(ValueError):
    """Raised when the hub's data set lacks the required files."""


def _wanted(repository: str, config: str | None, listed: Sequence[str]) -> list[str]:
    """The files to load of a hub data set: all of its data files, or those of one folder."""
    names = data_files(listed)
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    if config is None and len(folders) > 1:
        raise _NoSuchFiles(
            f"{repository}: has {', '.join(folders)}: choose one, {repository}:{folders[0]}"
        )
    wanted = [name for name in names if config is None or name.startswith(f"{config}/")]
    if not wanted:
        raise _NoSuchFiles(f"{repository}: has no {config or 'data'} files; it has {listed}")
    return sorted(wanted)

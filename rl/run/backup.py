"""A copy of a run's folder on any file system that fsspec knows, from which a run continues.

The copy has the same files under the same names, so any tool reads it. Files of a checkpoint are
copied last, and the file that makes a checkpoint complete is the last of them. A copy that is cut
off at any point therefore holds the files of an earlier checkpoint, with possibly newer metrics and
episodes, which a run that continues from that checkpoint removes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rl.errors import RunFailure, UsageError
from rl.files import make_folder, replace_text
from rl.learner.checkpoint import TRAINER_STATE

COPIED = ".backup.json"
"""File of a run's folder that records size and time of each file that was copied."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "hf"}
"""Protocols without folders. To make one would make a bucket, which a wrong URL must not."""
_CHECKPOINTS = "checkpoints"
_NEW = ".new"

Files = dict[str, tuple[int, int]]
"""Size in bytes and time of the last change in ns of files, by name relative to the folder."""


class Backup:
    """The copy of a run's folder.

    Args:
        url: where the copy is: ``s3://BUCKET/RUN``, ``gs://BUCKET/RUN``, a folder, or another URL
            of fsspec. Credentials are those of the environment.
        folder: the run's folder.

    Raises:
        UsageError: fsspec does not know the URL, or a package for it is not installed.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        try:
            found: tuple[AbstractFileSystem, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"backup ({url}) cannot be used: {error}; give a folder or a URL such as "
                f"s3://bucket/run, with the package that fsspec needs for it"
            ) from error
        self._fs, self._root = found
        here = self._root if isinstance(self._fs, LocalFileSystem) else None
        if here is not None and folder.resolve() in (Path(here), *Path(here).parents):
            raise UsageError(f"backup ({url}) must be outside of the run's folder, {folder}")
        self._made = set[str]()
        """Folders of the copy that exist."""

    def bring(self, *, resume: bool) -> None:
        """Check the copy, and fetch it if the folder has no complete checkpoint but the copy has.

        Args:
            resume: whether a run that is there may be continued.

        Raises:
            UsageError: the copy cannot be read, or is that of another run, or is newer than the
                folder.
        """
        with self._refused():
            there, own = _newest(self._files()), _newest(_files_in(self._folder, None))
            if there < 0:
                self._try()
                return
            if not resume:
                raise UsageError(
                    f"backup ({self.url}) holds a run already: continue it with resume=auto, or "
                    f"choose another backup=..."
                )
            if own < 0:
                self._fetch()
            elif own < there:
                raise UsageError(
                    f"{self._folder} ends at step {own}, and its backup ({self.url}) at step "
                    f"{there}: move the folder away to continue from the backup"
                )

    def copy(self, checkpoint: Path | None) -> None:
        """Copy what has changed since the last call. Blocks until it is there.

        Files that the folder no longer has are removed from the copy.

        Args:
            checkpoint: the complete checkpoint to copy; of others nothing is copied. It must not be
                deleted meanwhile.

        Raises:
            RunFailure: a file cannot be copied. The next call continues.
        """
        known, found = self._copied(), _files_in(self._folder, checkpoint)
        changed = sorted((name for name in found if known.get(name) != found[name]), key=_rank)
        try:
            with self._reported():
                for name in changed:
                    if self._put(name):
                        known[name] = found[name]
                # First what makes an old checkpoint complete: never is a part of one taken for it.
                for name in sorted(known.keys() - found.keys(), key=_rank, reverse=True):
                    self._remove(name)
                    del known[name]
        finally:
            replace_text(self._folder / COPIED, json.dumps(known))

    def _try(self) -> None:
        """Check that files can be copied, before hours of work depend on it."""
        probe = self._there(f".probe{_NEW}")
        self._make(self._root)
        self._fs.pipe_file(probe, b"turnwise")
        self._fs.rm_file(probe)

    def _fetch(self) -> None:
        """Fetch all files, in an order that lets another call continue."""
        make_folder(self._folder)
        for name in sorted(self._files(), key=_rank):
            self._get(name)
        record = _files_in(self._folder, None)
        replace_text(self._folder / COPIED, json.dumps(record))

    def _get(self, name: str) -> None:
        """Fetch a file."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}{_NEW}")
        self._fs.get_file(self._there(name), str(partial))
        partial.replace(path)

    def _put(self, name: str) -> bool:
        """Copy a file. Returns False if it is gone: episodes of old steps may be deleted."""
        path, target = self._folder / name, self._there(name)
        if not path.exists():
            return False
        self._make(target.rpartition("/")[0])
        if isinstance(self._fs, LocalFileSystem):
            # An object appears complete or not at all, and so must a file.
            partial = Path(target).with_name(f".{path.name}{_NEW}")
            shutil.copyfile(path, partial)
            partial.replace(target)
        else:
            self._fs.put_file(str(path), target)
        return True

    def _remove(self, name: str) -> None:
        """Remove a file from the copy, and the folders that are empty then."""
        path = self._there(name)
        if self._fs.exists(path):
            self._fs.rm_file(path)
        for _ in range(name.count("/")):
            path = path.rpartition("/")[0]
            # An object store has no folders, and some file systems find none to remove.
            with suppress(FileNotFoundError, NotADirectoryError):
                self._fs.invalidate_cache(path)
                if self._fs.ls(path, detail=False):
                    return
                self._fs.rmdir(path)
                self._made.discard(path)

    def _files(self) -> list[str]:
        """The names of the copy's files, relative to it."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return []
        root = PurePosixPath(self._root)
        found = (PurePosixPath(path).relative_to(root) for path in self._fs.find(self._root))
        shown = (name for name in found if not any(p.startswith(".") for p in name.parts))
        return [str(name) for name in shown]

    def _make(self, place: str) -> None:
        """Make a folder of the copy, where the file system has folders."""
        protocols = self._fs.protocol
        known = {protocols} if isinstance(protocols, str) else set(protocols)
        if place not in self._made and not known & _OBJECT_STORES:
            self._fs.makedirs(place, exist_ok=True)
        self._made.add(place)

    def _there(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _copied(self) -> Files:
        """What was copied, from the folder's record; without it, everything is copied again."""
        try:
            plain = json.loads((self._folder / COPIED).read_text(encoding="utf-8"))
            return {name: (int(size), int(time)) for name, (size, time) in plain.items()}
        except (OSError, ValueError):
            return {}

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            with self._reported():
                yield
        except RunFailure as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn errors of the file system, which are of any type, into a RunFailure."""
        try:
            yield
        except (UsageError, RunFailure):
            raise
        except Exception as error:
            said = str(error).strip().splitlines()
            what = said[0] if said else type(error).__name__
            raise RunFailure(f"backup ({self.url}) failed: {what}") from error


def _files_in(folder: Path, checkpoint: Path | None) -> Files:
    """The files of a run's folder, without hidden ones.

    Args:
        folder: the folder.
        checkpoint: the only checkpoint of a step whose files are meant; None for all of them.
    """
    found: Files = {}
    # The run deletes and renames files meanwhile, which this function does not mind.
    for place, inner, names in os.walk(folder):
        here = Path(place)
        inner[:] = [name for name in inner if not name.startswith(".")]
        if here == folder / _CHECKPOINTS and checkpoint is not None:
            inner[:] = [name for name in inner if name in ("best", checkpoint.name)]
        for path in (here / name for name in names if not name.startswith(".")):
            with suppress(FileNotFoundError):
                stat = path.stat()
                found[path.relative_to(folder).as_posix()] = stat.st_size, stat.st_mtime_ns
    return found


def _newest(names: Iterable[str]) -> int:
    """The step of the newest complete checkpoint among files, or -1."""
    return max(map(_step, names), default=-1)


def _step(name: str) -> int:
    """The step of a checkpoint, from the file that makes it complete; -1 for other files."""
    parts = name.split("/")
    if len(parts) == 3 and parts[0] == _CHECKPOINTS and parts[2] == TRAINER_STATE:
        number = parts[1].removeprefix("step-")
        return int(number) if number.isdecimal() else -1
    return -1


def _rank(name: str) -> tuple[bool, bool, str]:
    """The place of a file in the order of copying: checkpoints of steps last, complete at last."""
    of_step = name.startswith(f"{_CHECKPOINTS}/") and not name.startswith(f"{_CHECKPOINTS}/best/")
    return of_step, _step(name) >= 0, name

"""Reads the files that a run returns, after all processes of the run are dead.

No process can change the files any more. This module still follows no link: it opens each path
component relative to its parent folder, and returns only plain files without further hard links.
"""

# ruff: noqa: PTH123 (a descriptor is opened, not a path)

from __future__ import annotations

import fnmatch
import os
import stat

MAX_RETURNED = 1024
"""Maximum number of files that one run returns."""
_MAX_DEPTH = 32
"""Maximum nesting depth of folders that are read."""
_MAX_VISITED = 20_000
"""Maximum number of folders and entries that are read, including those that match no pattern."""
_MAX_NOTES = 64
"""Maximum number of omitted files that are listed with a reason."""
_MAX_SHOWN = 512
"""Maximum number of characters of a listed path."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def collect(folder: str, patterns: list[str], cap: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read the files below ``folder`` that match one of ``patterns``.

    Args:
        folder: working directory of a run whose processes are all dead.
        patterns: relative paths. A component may have wildcards, and ``**`` matches any number of
            folders.
        cap: maximum number of bytes of all contents and paths together.

    Returns:
        The contents of the files, by path; and the reasons for omitting matching files, by path.
    """
    found = _Collection(cap)
    try:
        top = os.open(folder, _FOLDER)
    except OSError as error:
        return {}, {".": _why(error)}
    try:
        for pattern in patterns:
            found.descend(top, "", tuple(pattern.split("/")), 0)
    finally:
        os.close(top)
    return found.files, found.explained()


class _Collection:
    def __init__(self, cap: int) -> None:
        self.files: dict[str, bytes] = {}
        self._notes: dict[str, str] = {}
        self._unnamed = 0
        self._room = cap
        self._num_visited = 0

    def explained(self) -> dict[str, str]:
        """Reasons for omitting files, by path. The path "..." stands for all further files."""
        if self._num_visited > _MAX_VISITED:
            return {**self._notes, "...": f"only {_MAX_VISITED} entries were read"}
        if self._unnamed:
            return {**self._notes, "...": f"and {self._unnamed} more"}
        return self._notes

    def descend(self, folder: int, path: str, parts: tuple[str, ...], depth: int) -> None:
        """Read the files below an open folder that match ``parts``."""
        first, rest = parts[0], parts[1:]
        if first == "**":
            self.descend(folder, path, rest, depth)
            for name in self._list(folder, path, "*"):
                self._enter(folder, path, name, parts, depth)
            return
        for name in self._list(folder, path, first) if _is_wild(first) else [first]:
            if rest:
                self._enter(folder, path, name, rest, depth)
            else:
                self._take(folder, path, name, wild=_is_wild(first))

    def _list(self, folder: int, path: str, pattern: str) -> list[str]:
        """The matching names in a folder, sorted."""
        names: list[str] = []
        self._num_visited += 1
        if self._num_visited > _MAX_VISITED:
            return names
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._num_visited += 1
                    if self._num_visited > _MAX_VISITED:
                        break
                    if fnmatch.fnmatchcase(entry.name, pattern):
                        names.append(entry.name)
        except OSError as error:
            self._note(path, _why(error))
        return sorted(names)

    def _enter(self, folder: int, path: str, name: str, parts: tuple[str, ...], depth: int) -> None:
        """Read a folder. Do nothing if the name is not that of a folder."""
        self._num_visited += 1
        if self._num_visited > _MAX_VISITED:
            return
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                return
            if depth == _MAX_DEPTH:
                self._note(f"{path}{name}/", f"more than {_MAX_DEPTH} folders deep")
                return
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self._note(f"{path}{name}/", _why(error))
            return
        try:
            self.descend(inner, f"{path}{name}/", parts, depth + 1)
        finally:
            os.close(inner)

    def _take(self, folder: int, path: str, name: str, *, wild: bool) -> None:
        """Read one plain file, or note why it is omitted."""
        whole = path + name
        if whole in self.files:
            return
        try:
            status = os.lstat(name, dir_fd=folder)
            if wild and stat.S_ISDIR(status.st_mode):
                return
            objection = self._objection(whole, status)
            if objection:
                self._note(whole, objection)
                return
            with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
                self.files[whole] = file.read(status.st_size)
        except FileNotFoundError:
            return
        except OSError as error:
            self._note(whole, _why(error))
            return
        self._room -= len(whole) + len(self.files[whole])

    def _objection(self, path: str, status: os.stat_result) -> str:
        """The reason why a file is omitted, or "" if it is not."""
        if stat.S_ISLNK(status.st_mode):
            return "a link"
        if stat.S_ISDIR(status.st_mode):
            return "a folder"
        if not stat.S_ISREG(status.st_mode):
            return "not a plain file"
        if status.st_nlink != 1:
            return "it has more than one name"
        if not path.isprintable():
            return "a name that cannot be printed"
        if len(self.files) == MAX_RETURNED:
            return f"the first {MAX_RETURNED} files are returned"
        if len(path) + status.st_size > self._room:
            return f"{status.st_size} bytes, {self._room} left of limits.returned_kb"
        return ""

    def _note(self, path: str, reason: str) -> None:
        shown = ascii(path)[1:-1] if not path.isprintable() else path
        if len(self._notes) < _MAX_NOTES or shown[:_MAX_SHOWN] in self._notes:
            self._notes[shown[:_MAX_SHOWN]] = reason
        else:
            self._unnamed += 1


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _is_wild(part: str) -> bool:
    return any(sign in part for sign in "*?[")

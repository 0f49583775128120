"""An index of a run's episodes: a row for each episode in an SQLite file, and its texts.

The index reads each file of episodes once, the newest first, and again if it changes. A query finds
the ids of all matching episodes in order; the list then reads the rows that it shows.
"""

from __future__ import annotations

import array
import hashlib
import os
import sqlite3
import threading
import time
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.files import turnwise_cache
from rl.rollout.trajectory_files import LINES
from rl.viewer.episodes.rows import (
    EpisodeFile,
    Row,
    episode_file,
    read_advantages,
    read_rows,
    storable,
)

VERSION = 2
"""Number of the index's layout and of the meaning of its columns. An index with another number is
made again."""
_REMEMBERED = 8
"""Number of queries whose results stay in memory."""
_COLUMNS = ", ".join(Row._fields)
_SHOWN = ", ".join(f"e.{name}" for name in Row._fields)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, signature TEXT, error TEXT);
CREATE TABLE IF NOT EXISTS episodes (id INTEGER PRIMARY KEY, {_COLUMNS});
CREATE INDEX IF NOT EXISTS by_file ON episodes (file, line);
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, text TEXT);
"""
_DAMAGED = (
    UsageError,
    OSError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    zlib.error,
    zipfile.BadZipFile,
)
"""Errors of reading a file that holds something else than a run's episodes."""
SORTS = {
    "step": "e.step",
    "reward": "e.reward",
    "advantage": "e.advantage",
    "tokens": "e.sampled",
    "turns": "e.turns",
    "seconds": "e.generate_s + e.env_s",
    "task": "e.task",
}
"""What the list of episodes can be sorted by."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which episodes to list, and in which order. An empty field restricts nothing."""

    text: str = ""
    """A part of any text of the episode, in upper or lower case."""
    kind: str = ""
    step: str = ""
    """A step, or a range of steps such as "3-8"."""
    env: str = ""
    ending: str = ""
    failure: str = ""
    task: str = ""
    low: str = ""
    """The smallest reward."""
    high: str = ""
    """The largest reward."""
    sort: str = "step"
    order: str = "desc"

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Query:
        """The query of a URL's parameters; other parameters are ignored."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in parameters.items() if key in known and value})

    def where(self) -> tuple[str, list[Any]]:
        """The condition in SQL, and its values.

        Raises:
            UsageError: a value is no number, or the order is unknown.
        """
        terms, values = ["1"], list[Any]()
        for name in ("kind", "env", "ending", "failure"):
            if value := getattr(self, name):
                terms.append(f"e.{name} = ?")
                values.append(value)
        if self.step:
            first, _, last = self.step.partition("-")
            terms.append("e.step BETWEEN ? AND ?")
            values += [_number("step", first), _number("step", last or first)]
        for name, term in (("task", "e.task = ?"), ("low", "e.reward >= ?")):
            if value := getattr(self, name):
                terms.append(term)
                values.append(_number(name, value))
        if self.high:
            terms.append("e.reward <= ?")
            values.append(_number("high", self.high))
        if self.text:
            terms.append("instr(t.text, ?) > 0")
            values.append(storable(self.text).lower())
        return " AND ".join(terms), values

    def sql(self) -> tuple[str, list[Any]]:
        """The statement that finds the ids in order, and its values."""
        if self.sort not in SORTS or self.order not in ("asc", "desc"):
            raise UsageError(f"sort ({self.sort}) must be one of {', '.join(SORTS)}")
        where, values = self.where()
        joined = "JOIN texts t ON t.id = e.id" if self.text else ""
        order = (
            f"{SORTS[self.sort]} {self.order} NULLS LAST, e.kind != 'train', e.file DESC, e.line"
        )
        return f"SELECT e.id FROM episodes e {joined} WHERE {where} ORDER BY {order}", values


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{name} ({text}) must be a number") from error


class EpisodeIndex:
    """The index of one run's episodes. Methods can be called from any thread.

    Args:
        folder: the run's ``trajectories``.
        database: the SQLite file, or None for an index in memory.
    """

    def __init__(self, folder: Path, database: Path | None) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._updating = threading.Lock()
        self._found: OrderedDict[Query, array.array[int]] = OrderedDict()
        self._others = 0
        """A number that changes when another viewer writes the index."""
        self.revision = 0
        """Number of changes since the index was opened."""
        try:
            self._open(database)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # The machine was switched off while the file was written, or the file is no index.
            assert database is not None
            self._db.close()
            for ending in ("", "-wal", "-shm"):
                database.with_name(database.name + ending).unlink(missing_ok=True)
            self._open(database)

    def _open(self, database: Path | None) -> None:
        self._db = sqlite3.connect(database or ":memory:", timeout=30.0, check_same_thread=False)
        with self._lock, self._db:
            self._db.execute("PRAGMA page_size = 16384")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute("PRAGMA mmap_size = 2000000000")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                for table in ("files", "episodes", "texts"):
                    self._db.execute(f"DROP TABLE IF EXISTS {table}")
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the SQLite file."""
        with self._lock:
            self._db.close()

    def pending(self) -> list[EpisodeFile]:
        """The files that are new or changed, the newest first. Rows of removed files go."""
        try:
            files = [episode_file(path) for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            files = []
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be read: {error.strerror}") from error
        present = {file.name: file for file in files if file is not None}
        with self._lock:
            known = dict(self._db.execute("SELECT name, signature FROM files"))
            for name in known.keys() - present.keys():
                with self._db:
                    self._forget(name)
        changed = [file for name, file in present.items() if _changed(file, known.get(name))]
        return sorted(changed, key=lambda file: (file.step, file.name), reverse=True)

    def update(self, seconds: float) -> int:
        """Read new and changed files until ``seconds`` have passed.

        Returns:
            The number of files that are left.
        """
        end = time.monotonic() + seconds
        # One thread reads: two pages would read the same files twice.
        mine = self._updating.acquire(timeout=seconds)
        try:
            pending = self.pending()
            while mine and pending:
                self._read(pending.pop(0))
                if time.monotonic() > end:
                    break
            return len(pending)
        finally:
            if mine:
                self._updating.release()

    def refresh(self, name: str) -> None:
        """Read one file of episodes if it is new or changed. Rows of a removed file go."""
        file = episode_file(self._folder / f"{name}{LINES}")
        if file is None or file.name != name:
            return
        with self._lock:
            known = dict(
                self._db.execute("SELECT name, signature FROM files WHERE name = ?", (name,))
            )
            if known and not file.path.exists():
                with self._db:
                    self._forget(name)
        if file.path.exists() and _changed(file, known.get(name)):
            self._read(file)

    def _read(self, file: EpisodeFile) -> None:
        signature = file.signature()
        error: str | None = None
        found: list[tuple[Row, str]] = []
        try:
            advantages, error = read_advantages(file)
            found = list(read_rows(file, advantages))
        except FileNotFoundError:
            return
        except _DAMAGED as bad:
            error = _why(file, bad)
        try:
            self._store(file.name, signature, found, error)
        except (OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as bad:
            self._store(file.name, signature, [], _why(file, bad))

    def _store(
        self, name: str, signature: str, found: Sequence[tuple[Row, str]], error: str | None
    ) -> None:
        """Replace the rows of a file."""
        places = ", ".join("?" * len(Row._fields))
        with self._lock, self._db:
            self._forget(name)
            for row, text in found:
                added = self._db.execute(
                    f"INSERT INTO episodes ({_COLUMNS}) VALUES ({places})", row
                )
                self._db.execute("INSERT INTO texts VALUES (?, ?)", (added.lastrowid, text))
            self._db.execute("INSERT INTO files VALUES (?, ?, ?)", (name, signature, error))

    def _forget(self, name: str) -> None:
        """Remove the rows of a file."""
        self._db.execute(
            "DELETE FROM texts WHERE id IN (SELECT id FROM episodes WHERE file = ?)", (name,)
        )
        self._db.execute("DELETE FROM episodes WHERE file = ?", (name,))
        self._db.execute("DELETE FROM files WHERE name = ?", (name,))
        self._found.clear()
        self.revision += 1

    def find(self, query: Query) -> array.array[int]:
        """The ids of the episodes that match, in order."""
        sql, values = query.sql()
        with self._lock:
            (others,) = self._db.execute("PRAGMA data_version").fetchone()
            if others != self._others:
                self._others = others
                self._found.clear()
            if query in self._found:
                self._found.move_to_end(query)
                return self._found[query]
            ids = array.array("q", (row[0] for row in self._db.execute(sql, values)))
            self._found[query] = ids
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
            return ids

    def rows(self, ids: array.array[int]) -> list[Row]:
        """The rows of these ids, in the same order."""
        places = ", ".join("?" * len(ids))
        sql = f"SELECT e.id, {_SHOWN} FROM episodes e WHERE e.id IN ({places})"
        with self._lock:
            by_id = {row[0]: Row(*row[1:]) for row in self._db.execute(sql, ids.tolist())}
        return [by_id[number] for number in ids if number in by_id]

    def row(self, file: str, line: int) -> Row | None:
        """The row of one episode, or None if the index does not have it."""
        found = self._select("WHERE file = ? AND line = ?", (file, line))
        return found[0] if found else None

    def group(self, file: str, grp: int) -> list[Row]:
        """The rows of a group, in order."""
        return self._select("WHERE file = ? AND grp = ? ORDER BY line", (file, grp))

    def all_rows(self) -> list[Row]:
        """The rows of all episodes, by file and line."""
        return self._select("ORDER BY step, file, line", ())

    def tasks(self, kind: str) -> list[tuple[Any, ...]]:
        """For each task: environment, task, mean reward, number of episodes, and the newest one."""
        sql = (
            "SELECT env, task, avg(reward), count(*), max(step), file, line FROM episodes "
            "WHERE kind = ? AND ending != 'failed' GROUP BY env, task"
        )
        with self._lock:
            return self._db.execute(sql, (kind,)).fetchall()

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of episodes by kind, environment, ending and failure."""
        with self._lock:
            return {
                name: dict(
                    self._db.execute(
                        f"SELECT {name}, count(*) FROM episodes WHERE {name} != '' "
                        f"GROUP BY {name} ORDER BY 2 DESC"
                    )
                )
                for name in ("kind", "env", "ending", "failure")
            }

    def errors(self) -> list[str]:
        """Why files could not be read."""
        with self._lock:
            found = self._db.execute("SELECT error FROM files WHERE error IS NOT NULL")
            return [row[0] for row in found]

    def _select(self, rest: str, values: tuple[Any, ...]) -> list[Row]:
        sql = f"SELECT {_COLUMNS} FROM episodes {rest}"
        with self._lock:
            return [Row(*row) for row in self._db.execute(sql, values)]


def _why(file: EpisodeFile, error: Exception) -> str:
    return str(error) if isinstance(error, UsageError) else f"{file.path} cannot be read: {error!r}"


def _changed(file: EpisodeFile, known: str | None) -> bool:
    try:
        return file.signature() != known
    except FileNotFoundError:
        return False


def database_of(folder: Path) -> Path | None:
    """The SQLite file for the run in ``folder``, in the cache; None if the cache is read-only.

    Only this user can read it, because it holds the texts of a run that may be private. Where
    users share a cache, each has an own file.
    """
    key = f"{os.getuid()} {folder.resolve()}"
    name = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    cache = turnwise_cache() / "viewer"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        path = cache / f"{name}.sqlite"
        path.touch(mode=0o600)
        if path.stat().st_uid != os.getuid():
            return None
        path.chmod(0o600)
        return path
    except OSError:
        return None

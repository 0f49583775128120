"""Loads users' functions and classes by reference, and keeps what is made from users' files.

A reference is ``agent.py:play`` or ``package.mod:Env``. Files are read again when they change.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

importing: ContextVar[ModuleType | None] = ContextVar("importing", default=None)
"""The module of the user's file that is being imported, or None. Names that are registered
meanwhile belong to this module."""

_REFERENCE = re.compile(r"(?P<module>[^\s:]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>\w+)")


class ReferenceFailure(ImportError):
    """Raised when a user's file or module cannot be imported. The message has one line."""


def is_reference(text: str) -> bool:
    """Whether a text has the form ``file.py:name`` or ``package.module:name``."""
    return _REFERENCE.fullmatch(text) is not None


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """The function to which a reference refers.

    Args:
        reference: ``file.py:function`` or ``package.module:function``.
        key: name of the setting, for messages.

    Raises:
        ValueError: the file, module or function does not exist, or the import fails.
    """
    match = _REFERENCE.fullmatch(reference)
    assert match is not None, "ask is_reference first"
    try:
        module = load_module(match["module"])
    except ReferenceFailure as error:
        raise ValueError(f"{key} ({reference}): {error}") from error
    function = getattr(module, match["name"], None)
    if not callable(function):
        known = sorted(
            name
            for name, value in vars(module).items()
            if inspect.isroutine(value) or inspect.isclass(value)
            if value.__module__ == module.__name__
        )
        raise ValueError(
            f"{key} ({reference}): {match['module']} has no {match['name']}; it has "
            f"{', '.join(known) or 'no function or class'}"
        )
    return function  # type: ignore[no-any-return]


def load_module(name: str) -> ModuleType:
    """Import a module by its name, or by the path of its file, which ends in ``.py``.

    A file is imported again only if it has changed. Its folder is added at the end of ``sys.path``,
    so that the file can import modules beside it.

    Raises:
        ReferenceFailure: there is no such module, or the import fails. The message names the
            exception, file and line.
    """
    try:
        return _from_file(name) if name.endswith(".py") else importlib.import_module(name)
    # The user's module is foreign code: any exception of its import is reported as the module's.
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ReferenceFailure(f"{name} fails to import: {what}{_place(error, name)}") from error


def module_name(path: Path) -> str:
    """The module name for a user's file, unique for each path."""
    # Without a dot: pickle would import the part before it as a package.
    stem = re.sub(r"\W", "_", path.stem)
    return f"turnwise_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def source_of(text: str) -> Path | None:
    """The file of a reference, or None if the text is no reference or its module has no file."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    if match["module"].endswith(".py"):
        return Path(match["module"]).expanduser()
    try:
        spec = importlib.util.find_spec(match["module"])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


_versions: dict[str, object] = {}
"""Version of each imported file, by module name."""
_SMALL = 1 << 20
"""Maximum size of a file that is compared by its content."""
_reading: ContextVar[dict[Path, object] | None] = ContextVar("reading", default=None)
"""Versions of the files from which a result is being made, or None."""
_holds: list[object] = []
"""One entry per open :func:`files_held`. All have the same object, as long as one is open."""


def version_of(path: Path) -> object:
    """A value that changes with a file's content, or with the names in a folder.

    A large file is compared by its times, its inode and its size.
    """
    try:
        if path.is_dir():
            return sorted(map(str, path.rglob("*")))
        status = path.stat()
        if status.st_size <= _SMALL:
            return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


def depends_on(path: Path) -> None:
    """Note that the result that is being made depends on a file or folder. Call before reading."""
    files = _reading.get()
    if files is not None and path not in files:
        files[path] = version_of(path)


class _Kept(NamedTuple):
    result: Any
    files: dict[Path, object]
    hold: object

    def is_current(self, hold: object) -> bool:
        held = hold is not None and hold is self.hold
        return held or all(version_of(path) == known for path, known in self.files.items())


def kept_while_unchanged(read: Callable[P, T]) -> Callable[P, T]:
    """A function that keeps its result per arguments until a file of :func:`depends_on` changes."""
    kept: dict[object, _Kept] = {}

    @functools.wraps(read)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        key, hold = (args, *kwargs.items()), _holds[0] if _holds else None
        known = kept.get(key)
        if known is None or not known.is_current(hold):
            files = dict[Path, object]()
            token = _reading.set(files)
            try:
                known = _Kept(read(*args, **kwargs), files, hold)
            finally:
                _reading.reset(token)
        kept[key] = known._replace(hold=hold)
        if (outer := _reading.get()) is not None:
            outer.update(known.files)
        return cast(T, known.result)

    return call


@contextmanager
def files_held() -> Iterator[None]:
    """A context in which results of :func:`kept_while_unchanged` stay as they are at the first use.

    A run plays its tasks in it: a file that changes meanwhile changes the next run.
    """
    _holds.append(_holds[0] if _holds else object())
    try:
        yield
    finally:
        _holds.pop()


def _from_file(name: str) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    depends_on(path)
    known, version = module_name(path), version_of(path)
    if known in sys.modules and _versions.get(known) == version:
        return sys.modules[known]
    # Compiled here: Python's cache misses changes within one second.
    code = compile(path.read_bytes(), path, "exec", dont_inherit=True)
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(known)
    # Before the module runs: dataclasses look up their module in sys.modules.
    sys.modules[known] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    outer = importing.set(module)
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[known]
        if before is not None:
            sys.modules[known] = before
        raise
    finally:
        importing.reset(outer)
    _versions[known] = version
    return module


def _place(error: BaseException, name: str) -> str:
    """File and line of a failed import, as text. "" if the traceback shows no user's file."""
    if isinstance(error, SyntaxError):
        return ""  # The message of a SyntaxError ends with both.
    stack = traceback.extract_tb(error.__traceback__)
    frames = [f for f in stack if f.filename != __file__ and "importlib" not in f.filename]
    named = str(Path(name).expanduser().resolve())
    frames = [f for f in frames if f.filename == named] or frames
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""

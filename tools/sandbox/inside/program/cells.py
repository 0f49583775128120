"""The interpreter of a session: runs cells of code in one namespace, as a notebook does.

The interpreter runs in the program's process. Its messages are therefore not trusted: they are only
shown.
"""

# Plain os calls, which are fast and take modes.
# ruff: noqa: PTH102, PTH109, PTH115, PTH123, PTH211

from __future__ import annotations
import __future__

import _signal  # type: ignore[import-not-found]
import ast
import builtins
import collections
import contextlib
import linecache
import os
import random
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from types import FrameType
from typing import Any, NoReturn

from tools.sandbox.inside import frames, kernel

LINK_FD = 120
"""Descriptor of the socket to the supervisor. It is high, because a program can rely on low
numbers."""
_CHUNK = 1 << 20
_KEPT_CELLS = 500
"""Number of most recent cells whose source lines tracebacks can show."""
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


def folder_of(base: str, branch: int) -> str:
    """The working directory of a branch. ``base`` is the run's own folder."""
    return f"{base}/fork-{branch}" if branch else f"{base}/session"


class Interpreter:
    """Runs the cells that arrive on a socket, in one namespace.

    Args:
        link: socket to the supervisor.
        folder: the working directory.
        cap: maximum number of characters of a value or traceback to send.
        own_group: whether a copy creates its own process group. If False, the supervisor creates
            it.
    """

    def __init__(self, link: socket.socket, folder: str, cap: int, *, own_group: bool) -> None:
        os.dup2(link.fileno(), LINK_FD, inheritable=False)
        link.close()
        self._link = socket.socket(fileno=LINK_FD)
        self._folder = folder
        self._cap = cap
        self._own_group = own_group
        self._pid = os.getpid()
        self._running = False
        self._interrupts = 0
        """Number of interrupts that this object's handler handled. A handler that the program
        installed can have handled further ones."""
        self._futures = 0
        self._count = 0
        self._names: collections.deque[str] = collections.deque()
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        self._namespace = main.__dict__
        self._handler = self._interrupt  # bound once, so that ``is`` recognises it

    def serve(self) -> NoReturn:
        """Run cells and make copies, as requested, until the process is killed."""
        self._send(frames.READY, "")
        while True:
            operation, body, fds = self._receive()
            if operation == frames.RUN:
                (earlier,) = frames.INTERRUPTS.unpack_from(body)
                code = body[frames.INTERRUPTS.size :].decode("utf-8", "surrogatepass")
                self._send(*self._call(code, earlier))
            else:
                self._fork(int(body), fds)

    def _call(self, source: str, earlier: int) -> tuple[int, str]:
        if (
            _signal.getsignal(signal.SIGINT) is not self._handler
        ):  # the wrapper costs a tenth of a call
            signal.signal(signal.SIGINT, self._handler)
        try:
            self._running = True
            try:
                early = self._interrupts > earlier
                self._interrupts = earlier + early
                if early:
                    answer = frames.ERROR, "KeyboardInterrupt: before the code began"
                else:
                    answer = self._run(source)
            finally:
                self._running = False
        except KeyboardInterrupt as error:  # raised after the cell, before the line above
            self._running = False
            answer = frames.ERROR, self._format(error)
        if os.getpid() != self._pid:  # a process that the cell's os.fork made
            failed = answer[0] in (frames.ERROR, frames.MEMORY)
            self._exit_process(int(failed), answer[1] if failed else "")
        self._flush()
        return answer

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._running:  # else no cell runs, and the next call sees ``_interrupts``
            raise KeyboardInterrupt

    def _run(self, source: str) -> tuple[int, str]:
        try:
            value = self._execute(source)
            if value is None or source.rstrip().endswith(";"):
                return frames.NOTHING, ""
            builtins._ = value  # type: ignore[attr-defined]
            return frames.VALUE, repr(value)
        except SystemExit as error:
            if os.getpid() != self._pid:
                self._exit_process(
                    error.code if isinstance(error.code, int) else int(bool(error.code))
                )
            # The session continues, unlike a script.
            if not error.code:
                return frames.NOTHING, ""
            return frames.ERROR, f"SystemExit: {error.code}"
        except MemoryError as error:
            return frames.MEMORY, self._format(error)
        except BaseException as error:
            return frames.ERROR, self._format(error)

    def _execute(self, source: str) -> Any:
        """Run a cell; return the value of its last line if that is an expression."""
        self._count += 1
        name = f"<cell {self._count}>"
        self._remember(name, source)
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | self._futures, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            del tree.body[-1]
        if tree.body:
            exec(self._compiled(tree, name, "exec"), self._namespace)
        if not isinstance(last, ast.Expr):
            return None
        return eval(self._compiled(ast.Expression(last.value), name, "eval"), self._namespace)

    def _compiled(self, tree: ast.Module | ast.Expression, name: str, mode: str) -> types.CodeType:
        code: types.CodeType = compile(tree, name, mode, self._futures, dont_inherit=True)
        # `from __future__ import` applies to the following cells too.
        self._futures |= code.co_flags & _FUTURES
        return code

    def _remember(self, name: str, source: str) -> None:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        self._names.append(name)
        if len(self._names) > _KEPT_CELLS:
            linecache.cache.pop(self._names.popleft(), None)

    def _format(self, error: BaseException) -> str:
        """The exception's traceback as text, starting at the first frame of a cell."""
        try:
            self._trim(error)
            return "".join(traceback.format_exception(error)).rstrip("\n")
        except (MemoryError, RecursionError):
            return type(error).__name__

    def _trim(self, error: BaseException) -> None:
        """Remove this file's frames from the tracebacks of an exception and of its causes."""
        seen: set[int] = set()
        pending: list[BaseException | None] = [error]
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            pending += [one.__cause__, one.__context__]
            trace = one.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == _OWN_FILE:
                trace = trace.tb_next
            one.__traceback__ = trace
            while trace is not None:
                after = trace.tb_next
                if after is not None and after.tb_frame.f_code is _INTERRUPT_CODE:
                    trace.tb_next = None
                trace = trace.tb_next

    def _exit_process(self, code: int, message: str = "") -> NoReturn:
        """End a process that a cell forked, in the same way as a script ends."""
        if message:
            sys.stderr.write(message + "\n")
        self._flush()
        os._exit(code & 0xFF)

    def _flush(self) -> None:
        try:
            sys.__stdout__.flush()  # type: ignore[union-attr]
            sys.__stderr__.flush()  # type: ignore[union-attr]
        except (OSError, ValueError, AttributeError):  # closed or replaced by the cell
            open_streams()

    def _fork(self, branch: int, fds: list[int]) -> None:
        """Copy this process.

        The copy also returns from this method, and serves the socket in ``fds``.
        """
        state = random.getstate()
        refusal = ""
        try:
            if self._fork_process():
                random.setstate(state)
                self._become_copy(branch, fds)
                return
        except OSError as error:
            if os.getpid() != self._pid:
                os._exit(1)
            refusal = f"{error.strerror or error} (limits.processes counts copies too)"
        # Sent before the copy's socket closes, so that the supervisor reads the reason first.
        self._send(frames.REFUSED if refusal else frames.NOTHING, refusal)
        for fd in fds:
            os.close(fd)

    def _fork_process(self) -> bool:
        """Fork a process whose parent is the supervisor.

        Returns True in that process and False here.
        """
        if threading.active_count() == 1:
            return kernel.clone_as_sibling() == 0
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # threads are not copied: documented
            child = os.fork()
            if child == 0:
                # Through a child that ends at once, so that the supervisor adopts its child.
                between = os.getpid()
                if os.fork():
                    os._exit(0)
                while os.getppid() == between:
                    os.sched_yield()
                return True
        with contextlib.suppress(ChildProcessError):  # if the program ignores SIGCHLD
            if os.waitpid(child, 0)[1]:
                raise OSError("no further process")
        return False

    def _become_copy(self, branch: int, fds: list[int]) -> None:
        os.dup2(fds[0], LINK_FD, inheritable=False)
        for target, fd in ((1, fds[1]), (2, fds[2])):
            os.dup2(fd, target)
        for fd in fds:
            os.close(fd)
        self._pid, self._interrupts = os.getpid(), 0
        try:
            kernel.die_with_parent()
            if self._own_group:
                os.setpgid(0, 0)
            self._move_to(folder_of(os.path.dirname(self._folder), branch))  # noqa: PTH120
        except (OSError, RecursionError) as error:
            self._send(frames.REFUSED, f"{type(error).__name__}: {error}")
            os._exit(1)
        self._send(frames.READY, "")

    def _move_to(self, folder: str) -> None:
        """Copy the working directory to ``folder`` and continue there."""
        old, self._folder = self._folder, folder
        here = os.getcwd()
        copy_tree(old, folder)
        inside = os.path.relpath(here, old) if (here + "/").startswith(old + "/") else None
        if inside is not None:
            os.chdir(os.path.join(folder, inside))  # noqa: PTH118
        for name in ("HOME", "TMPDIR"):
            if os.environ.get(name) == old:
                os.environ[name] = folder
        tempfile = sys.modules.get("tempfile")
        if tempfile is not None and tempfile.tempdir == old:
            tempfile.tempdir = folder  # type: ignore[attr-defined]
        sys.path[:] = [folder if entry == old else entry for entry in sys.path]

    def _receive(self) -> tuple[int, bytes, list[int]]:
        data, fds, _, _ = socket.recv_fds(self._link, 1 << 16, 3)
        while len(data) < frames.INNER.size:
            data += self._receive_more(frames.INNER.size - len(data))
        operation, size = frames.INNER.unpack_from(data)
        parts = [data[frames.INNER.size :]]
        missing = size - len(parts[0])
        while missing:
            parts.append(self._receive_more(missing))
            missing -= len(parts[-1])
        return operation, b"".join(parts), list(fds)

    def _receive_more(self, size: int) -> bytes:
        data = self._link.recv(min(size, 1 << 18))
        if not data:
            os._exit(0)
        return data

    def _send(self, kind: int, text: str) -> None:
        if len(text) > self._cap:
            text, kind = text[: self._cap], kind | frames.CUT
        body = text.encode("utf-8", "backslashreplace")
        if len(body) > self._cap:
            whole = body[: self._cap].decode("utf-8", "ignore")
            body, kind = whole.encode(), kind | frames.CUT
        self._link.sendall(frames.INNER.pack(kind, len(body)) + body)


_INTERRUPT_CODE = Interpreter._interrupt.__code__
_OWN_FILE = _INTERRUPT_CODE.co_filename


def open_streams() -> None:
    """Make standard output and standard error line-buffered, as on a terminal."""
    for fd, name, errors in ((1, "stdout", "surrogateescape"), (2, "stderr", "backslashreplace")):
        stream = open(  # noqa: SIM115
            fd, "w", encoding="utf-8", errors=errors, closefd=False, buffering=1
        )
        vars(sys).update({name: stream, f"__{name}__": stream})


def copy_tree(source: str, target: str) -> None:
    """Copy folders, files and links. Anything else is skipped."""
    os.mkdir(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            there = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), there)
            elif entry.is_dir():
                copy_tree(entry.path, there)
            elif entry.is_file():
                mode = entry.stat().st_mode & 0o777
                os.close(os.open(there, os.O_CREAT | os.O_WRONLY, mode | 0o200))
                with open(entry.path, "rb") as read, open(there, "wb") as written:
                    while chunk := read.read(_CHUNK):
                        written.write(chunk)

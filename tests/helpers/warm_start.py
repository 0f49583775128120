"""Commands in processes of their own that start at once.

To import torch and transformers takes a command most of its processor time. Each process of the
tests keeps one server that has imported such libraries, and nothing of this project. A command is a
fork of the server: a process with its own arguments, folder, environment and streams, which then
does what ``python`` would do. A test of what a command imports, or of its start, needs a process
that starts from nothing: ``subprocess``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

LIBRARIES = (
    "transformers.conversion_mapping",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "aiohttp.web",
    "gymnasium",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "rich.progress",
)
START_S = 300.0
"""Seconds until the server has imported its libraries, on a busy machine."""
Stream = int | IO[str] | IO[bytes]


class Warm:
    """A command that runs in a fork of the server. Leaving its context kills and awaits it."""

    def __init__(self, pid: int, ended: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        os.set_blocking(ended.fileno(), False)

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended the process; None while it runs."""
        if self.returncode is None and (word := self._ended.read()) is not None:
            self.returncode = int(word)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code.

        Raises:
            TimeoutExpired: the process still runs.
        """
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process if it runs."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Warm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if error is not None:
            self.kill()
        self.wait(START_S)
        self._ended.close()


def start(
    words: Sequence[object],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Stream | None = None,
    stderr: Stream | None = None,
) -> Warm:
    """Start ``python WORDS``: ``-m MODULE``, ``-c CODE`` or a file, and their arguments.

    Args:
        words: words of the command line after the interpreter.
        cwd: the command's folder; by default this process's.
        env: the whole environment; by default this process's.
        stdout: file to write to; by default the output is discarded.
        stderr: likewise.
    """
    request = {
        "words": list(map(str, words)),
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    read, write = os.pipe()
    with Path(os.devnull).open("r+") as nothing:
        streams = [nothing.fileno() if one is None else _number(one) for one in (stdout, stderr)]
        descriptors = [nothing.fileno(), *streams, write]
        socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
    os.close(write)
    ended = os.fdopen(read, "rb", buffering=0)
    pid = b""
    while not pid.endswith(b"\n"):
        byte = ended.read(1)
        assert byte, "the server of warm starts has died"
        pid += byte
    return Warm(int(pid), ended)


def run(
    words: Sequence[object],
    *,
    timeout: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Stream | None = None,
    stderr: Stream | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` to its end; see :func:`start`.

    Returns:
        The exit code, and the output of streams that have no file.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        streams = {"stdout": stdout or out, "stderr": stderr or errors}
        with start(words, cwd=cwd, env=env, **streams) as process:
            code = process.wait(timeout)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), errors.read())


def _number(stream: Stream) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


@functools.cache
def _server() -> socket.socket:
    """The server's socket. The server ends when the socket closes, as this process's end does.

    The server is no child of this process: tests look for what the code under test has started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with theirs:
        subprocess.run(
            [sys.executable, __file__, str(theirs.fileno())],
            env=environment | {"OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=START_S,
        )
    atexit.register(ours.close)
    ours.settimeout(START_S)
    assert ours.recv(5) == b"ready"
    return ours


# ---- in the server ---------------------------------------------------------------------------


def serve(requests: socket.socket) -> Callable[[], None]:
    """Fork for each request; returns, in the fork, the function that runs its command."""
    # Ctrl-C is for the process that the terminal shows; forks get the default action again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]  # this file's folder
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    requests.send(b"ready")
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 2**20, 4)
        if not message:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            return _forked(json.loads(message), streams)
        for number in streams:
            os.close(number)
        _reap()


def _reap() -> None:
    """Forget the forks that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _forked(request: dict, streams: list[int]) -> Callable[[], None]:
    """In a fork: fork the command, report its end, and exit. In the command: what it runs."""
    *standard, ended = streams
    pid = os.fork()
    if pid:
        os.write(ended, b"%d\n" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(ended, b"%d" % code)
        os._exit(0)
    os.close(ended)
    for number, stream in enumerate(standard):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return functools.partial(_as_python, request["words"])


def _as_python(words: list[str]) -> None:
    """Run the words after ``python``, in ``__main__``."""
    kind = words[0]
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if kind == "-m":
        sys.path[:0] = [str(Path.cwd()), *named]
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[:0] = ["", *named]
        sys.argv = ["-c", *words[2:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(module))
    else:
        sys.path[:0] = [str(Path(kind).resolve().parent), *named]
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    # The command runs here, after the server's own frames, and its end is the interpreter's own.
    serve(socket.socket(fileno=int(sys.argv[1])))()

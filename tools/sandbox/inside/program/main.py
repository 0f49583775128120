"""The program's process: confines itself, waits for a job and runs the job."""

# Each module, function and object that is used after a fork costs time in every run. Therefore this
# module uses plain os calls, and the C modules below ``signal`` and ``socket``.
# ruff: noqa: PTH102, PTH103, PTH120, PTH123

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _sitebuiltins
import _socket
import atexit
import builtins
import gc
import os
import resource
import socket
import struct
import sys
import threading
import traceback
from typing import Any, NoReturn, TextIO

from tools.sandbox.inside import fd_passing, kernel
from tools.sandbox.inside.codec import receive_exactly, unpack
from tools.sandbox.inside.config import Config
from tools.sandbox.inside.program import asserts, calls, cells, fork_hooks, loader, process_groups
from tools.sandbox.inside.workdir import PRIVATE_FOLDER, WorkDir

READY = b"R"
_NICE = 5
_STACK_MB = 8
_PENDING_SIGNALS = 256
"""Maximum number of queued signals and timers, because these take kernel memory."""
_CORE = 1
"""Limit of a core dump in bytes. With 0, the kernel starts the core-dump helper, which runs outside
of the sandbox as root. With 1, the kernel does not start it."""
_MAX_DESCRIPTORS = 128
_ADDRESS_SPACE_SLACK_MB = 512
"""Address space above the memory limit, in MiB, for mappings that use little memory, such as
libraries and stacks."""


def main(
    config: Config,
    workdir: WorkDir,
    task_limit: int,
    filter_: kernel.Filter | None,
    link: _socket.socket,
    stdio: tuple[int, int, int],
) -> NoReturn:
    """Confine this process, report to the supervisor, run its job and exit.

    Args:
        config: settings of the zygote.
        workdir: the run's folder and user.
        task_limit: RLIMIT_NPROC for ``config.processes``.
        filter_: system-call filter.
        link: socket to the supervisor.
        stdio: descriptors that become the descriptors 0, 1 and 2.
    """
    try:
        for target, fd in enumerate((*stdio, link.detach())):
            os.dup2(fd, target)
        kernel.close_descriptors_from(4)
        link = _socket.socket(fileno=3)
        _confine(config, workdir, filter_)
        link.send(READY)
        request, blobs, channel = _receive(link)
    except EOFError:
        os._exit(0)  # no job came: the sandbox closes
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    session = request["mode"] == "session"
    folder = cells.folder_of(workdir.folder, 0) if session else workdir.folder
    if session:
        os.mkdir(folder, 0o700)
        os.chdir(folder)
    else:
        link.close()
    _apply_limits(request, config, task_limit)
    for name, data in zip(request["files"], blobs[1:], strict=True):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
    _finish_setup(folder)
    if session:
        _serve_session(socket.socket(fileno=link.detach()), folder, request, config)
    # The compiler rejects an incomplete character.
    source = blobs[0].decode("utf-8", "surrogatepass")
    if request["mode"] == "program":
        _run_program(source)
    elif request["mode"] == "calls":
        calls.serve(socket.socket(fileno=channel), source)
    else:
        asserts.serve(socket.socket(fileno=channel))
    _exit(0)


def _confine(config: Config, workdir: WorkDir, filter_: kernel.Filter | None) -> None:
    os.chdir(workdir.folder)
    if config.isolation == "namespaces":
        process_groups.make_session()
    else:
        os.setpgid(0, 0)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in (_signal.SIGCHLD, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _set_limit(resource.RLIMIT_NOFILE, _MAX_DESCRIPTORS)
    # Set here, not in the zygote, whose limit applies to all of its clones together.
    _set_limit(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS)
    _set_limit(resource.RLIMIT_FSIZE, config.disk_mb << 20)
    os.nice(_NICE)
    if workdir.uid is not None:
        os.setgroups([])
        os.setresgid(workdir.uid, workdir.uid, workdir.uid)
        os.setresuid(workdir.uid, workdir.uid, workdir.uid)
    kernel.die_with_parent()
    kernel.no_new_privileges()
    if config.isolation == "restricted":
        kernel.restrict_paths(_path_rules(config, workdir), config.landlock)
    kernel.set_dumpable(True)
    if filter_ is not None:
        filter_.install()


def _path_rules(config: Config, workdir: WorkDir) -> list[tuple[str, int]]:
    read = kernel.LANDLOCK_READ | kernel.LANDLOCK_LIST | kernel.LANDLOCK_EXECUTE
    use = kernel.LANDLOCK_READ | kernel.LANDLOCK_WRITE
    return [
        (workdir.folder, kernel.LANDLOCK_ALL),
        *((path, read) for path in config.readable),
        # Not /dev/zero: no limit counts memory shared by it. /dev/full reads the same.
        *((f"/dev/{name}", use) for name in ("null", "full", "random", "urandom")),
    ]


def _set_limit(limit: int, value: int, hard: int | None = None) -> None:
    """Set a soft and a hard resource limit, both at most the current hard limit."""
    ceiling = resource.getrlimit(limit)[1]
    wanted = value if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        wanted = min(wanted, ceiling)
    resource.setrlimit(limit, (min(value, wanted), wanted))


def _receive(link: _socket.socket) -> tuple[dict[str, Any], list[bytes], int]:
    """Receive the job. Returns its header, source and files, and its channel's descriptor or -1."""
    prefix, fds = fd_passing.receive(link, 4, 1)
    if not prefix:
        raise EOFError
    prefix += receive_exactly(link, 4 - len(prefix))
    (length,) = struct.unpack("!I", prefix)
    request = unpack(receive_exactly(link, length))
    return request, [receive_exactly(link, n) for n in request["sizes"]], fds[0] if fds else -1


def _apply_limits(request: dict[str, Any], config: Config, task_limit: int) -> None:
    memory = request["memory_mb"] << 20
    _set_limit(resource.RLIMIT_AS, memory + (_ADDRESS_SPACE_SLACK_MB << 20))
    _set_limit(resource.RLIMIT_DATA, memory)
    _set_limit(resource.RLIMIT_CPU, request["cpu_s"], hard=request["cpu_s"] + 1)
    _set_limit(resource.RLIMIT_NPROC, task_limit - config.processes + request["processes"])


def prepare() -> None:
    """Do that part of the preparation that is the same for all programs forked from here."""
    os.environ.clear()
    os.environ.update(
        PATH="/usr/local/bin:/usr/bin:/bin",
        HOME=PRIVATE_FOLDER,
        TMPDIR=PRIVATE_FOLDER,
        LANG="C.UTF-8",
        MALLOC_ARENA_MAX="2",
        PYTHONDONTWRITEBYTECODE="1",
    )
    # `site` is not loaded, but programs use these three names.
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")
    builtins.help = _sitebuiltins._Helper()
    sys.argv = [loader.FILENAME]
    sys.path.insert(0, PRIVATE_FOLDER)
    _open_streams()
    os.umask(0o022)
    for limit, value in (
        (resource.RLIMIT_CORE, _CORE),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
    ):
        _set_limit(limit, value)
    # The hard limit stays: programs with deep recursion raise the soft one, and other limits bound
    # memory.
    ceiling = resource.getrlimit(resource.RLIMIT_STACK)[1]
    soft = _STACK_MB << 20 if ceiling == resource.RLIM_INFINITY else min(_STACK_MB << 20, ceiling)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, ceiling))


def _open_streams() -> None:
    """Open the standard streams while the descriptors are pipes.

    The streams keep pipes' properties.
    """
    own = [os.dup(fd) for fd in range(3)]
    reader, writer = os.pipe()
    for fd, end in enumerate((reader, writer, writer)):
        os.dup2(end, fd)
    stdin = _text(0, "r", "surrogateescape")
    stdout = _text(1, "w", "surrogateescape")
    stderr = _text(2, "w", "backslashreplace")
    vars(sys).update(stdin=stdin, stdout=stdout, stderr=stderr)
    vars(sys).update(__stdin__=stdin, __stdout__=stdout, __stderr__=stderr)
    os.close(reader)
    os.close(writer)
    for fd, saved in enumerate(own):
        os.dup2(saved, fd)
        os.close(saved)


def _text(fd: int, mode: str, errors: str) -> TextIO:
    stream: Any = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    if fd == 2:
        stream.reconfigure(line_buffering=True)
    return stream  # type: ignore[no-any-return]


def _finish_setup(folder: str) -> None:
    """Do that part of the preparation that differs between runs."""
    if folder != PRIVATE_FOLDER:
        os.environ["HOME"] = os.environ["TMPDIR"] = folder
        sys.path[0] = folder
    fork_hooks.release()
    gc.enable()


def _serve_session(
    link: socket.socket, folder: str, request: dict[str, Any], config: Config
) -> NoReturn:
    try:
        cells.open_streams()
        cells.Interpreter(
            link,
            folder,
            request["output_kb"] * 1024,
            own_group=config.isolation == "namespaces",
        ).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _run_program(source: str) -> NoReturn:
    code = 0
    try:
        loader.load(source, "__main__")
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:
        error.__traceback__ = loader.own_frames(error.__traceback__)
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(error)  # unlike the hook in C, it finds the program's lines
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _exit(code: int) -> NoReturn:
    """Exit as the interpreter does, but without freeing memory page by page."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        main_module = sys.modules.get("__main__")
        if main_module is not None:
            main_module.__dict__.clear()  # runs destructors of globals, which may still print
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except BaseException:
        traceback.print_exc()
        code = code or 120
    os._exit(code)

"""Serves a workspace from inside a sandbox's session: runs commands, reads and writes files.

The host runs this file as the first cell of a session, and then calls ``serve``. The file imports
only the standard library. Each command gets a shell of its own, which starts with the state in
which the last one ended: directory, variables and, in bash, functions, aliases and options. The
state is held here, not in a file, so a command that is killed, or that deletes files, loses no
earlier state. The agent's processes run as the same user: nothing that this file answers is
trusted.
"""

# Runs in the sandbox, with plain os calls on untrusted paths.
# ruff: noqa: PTH103, PTH108, PTH109, PTH115, PTH118, PTH119, PTH120, PTH123, PTH211

from __future__ import annotations

import base64
import codecs
import contextlib
import io
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from typing import Any

_CHUNK = 1 << 16
_DRAINED = 1 << 20
"""Maximum number of bytes to read after a command has ended, in case background jobs flood."""
_INTERRUPT_S, _KILL_S = 1.0, 2.0
_KEPT_GROUPS = 256
_BASH = (
    "IFS= read -r -d '' -u {given} __state; "
    'eval "$__state" 2>/dev/null; unset __state; '
    "IFS= read -r -d '' -u {given} __command; exec {given}<&-; "
    'trap \'{{ builtin declare -p; builtin printf "OLDPWD=%q\\n" "$OLDPWD"; '
    "builtin declare -f; builtin alias -p; builtin shopt -p; builtin umask -p; builtin set +o; "
    'builtin printf "builtin cd -- %q\\n#end\\n" "$PWD"; }} >&{saved} 2>/dev/null\' EXIT; '
    'eval "unset __command; $__command"'
)
"""Script of a command's shell. One line, so that messages count the lines of the command."""
_SH = """
__command="$(cat <&{given})"; exec {given}<&-
eval "${{__command%%__END_OF_STATE__*}}" 2>/dev/null
trap '{{ set; export -p; echo "umask $(umask)"; set +o; echo "cd -- \\"$PWD\\""; echo "#end"
}} >&{saved} 2>/dev/null' EXIT
eval "${{__command#*__END_OF_STATE__}}"
"""


class Output:
    """Text that arrives in pieces, of which the beginning and the end are kept."""

    def __init__(self, max_chars: int) -> None:
        self._half = max(1, max_chars // 2)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head, self._tail = "", ""
        self.left_out = 0

    def add(self, data: bytes, final: bool = False) -> None:
        """Add the next bytes."""
        text = self._decoder.decode(data, final)
        room = self._half - len(self._head)
        self._head += text[:room]
        self._tail += text[room:]
        excess = len(self._tail) - self._half
        if excess > 0:
            self._tail = self._tail[excess:]
            self.left_out += excess

    def text(self) -> str:
        """The kept text, with a line in place of what is left out."""
        self.add(b"", final=True)
        if not self.left_out:
            return self._head + self._tail
        return f"{self._head}\n[{self.left_out} characters left out]\n{self._tail}"


class Shell:
    """The shell of one workspace.

    Args:
        max_chars: maximum number of characters of a command's output.
    """

    def __init__(self, max_chars: int) -> None:
        self.folder = os.getcwd()
        self._max_chars = max_chars
        self._program = shutil.which("bash") or "/bin/sh"
        self._is_bash = self._program.endswith("bash")
        self._state = b"shopt -s expand_aliases" if self._is_bash else b""
        self._groups: list[int] = []
        """Process groups of earlier commands, which may hold background jobs."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._environment = {**os.environ, "PATH": f"{self._make_bin()}:{os.environ['PATH']}"}

    def _make_bin(self) -> str:
        """Make a folder beside the workspace with the commands ``python`` and ``python3``."""
        folder = os.path.join(os.path.dirname(self.folder), "bin")
        os.makedirs(folder, exist_ok=True)
        for name in ("python", "python3"):
            with contextlib.suppress(FileExistsError):
                os.symlink(sys.executable or os.readlink("/proc/self/exe"), f"{folder}/{name}")
        return folder

    # ---- commands --------------------------------------------------------------------------

    def run(self, command: str, wall_s: float) -> dict[str, Any]:
        """Run a command and return its exit code and output."""
        output = Output(self._max_chars)
        self._drain(output)
        state_reader, state_writer = os.pipe()
        given = self._given(command)
        try:
            process = self._start(given, state_writer)
        except OSError as error:
            os.close(state_reader)
            self._end_jobs()
            why = f"the shell could not start ({error.strerror}); background jobs were ended"
            return {"exit_code": None, "output": output.text(), "detail": why, "left_out": 0}
        finally:
            os.close(given)
            os.close(state_writer)
        state = bytearray()
        try:
            done = self._wait(process, output, state_reader, state, wall_s)
            timed_out = not done
            if not done:
                self._interrupt(process, output, state_reader, state)
        except BaseException:
            self._send(process, signal.SIGKILL)
            raise
        finally:
            os.close(state_reader)
        self._drain(output)
        if state.endswith(b"#end\n"):
            self._state = bytes(state)
        code = process.returncode
        code = None if timed_out or code is None else code if code >= 0 else 128 - code
        return {
            "exit_code": code,
            "timed_out": timed_out,
            "output": output.text(),
            "left_out": output.left_out,
        }

    def _given(self, command: str) -> int:
        """A descriptor from which a new shell reads its state and command."""
        text = command.encode("utf-8", "replace")
        between = b"\0" if self._is_bash else b"\n__END_OF_STATE__\n"
        data = self._state + between + text + (b"\0" if self._is_bash else b"")
        path = os.path.join(os.path.dirname(self.folder), f".given-{os.urandom(8).hex()}")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:  # no space left: a command that frees some must run
            return self._given_by_pipe(data)
        os.unlink(path)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
        except OSError:
            os.close(descriptor)
            return self._given_by_pipe(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _given_by_pipe(self, data: bytes) -> int:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with open(writer, "wb", buffering=0) as file:
            file.write(data)  # at most what a pipe holds; the rest of a longer text is lost
        return reader

    def _start(self, given: int, saved: int) -> subprocess.Popen[bytes]:
        script = (_BASH if self._is_bash else _SH).format(given=given, saved=saved)
        options = ["--norc", "--noprofile"] if self._is_bash else []
        arguments = [self._program, *options, "-c", script, os.path.basename(self._program)]
        for group in (0, None):
            try:
                process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=self._writer,
                    stderr=self._writer,
                    pass_fds=(given, saved),
                    cwd=self.folder if os.access(self.folder, os.X_OK) else "/",
                    env=self._environment,
                    process_group=group,
                )
            except PermissionError:  # a sandbox of isolation "restricted" forbids new groups
                if group is None:
                    raise
                continue
            if group == 0:
                self._groups = [*self._groups[-_KEPT_GROUPS:], process.pid]
            return process
        raise AssertionError("unreachable")

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        output: Output,
        state_reader: int,
        state: bytearray,
        seconds: float,
    ) -> bool:
        """Read output until the process ends; returns whether it ended in time."""
        deadline = time.monotonic() + seconds
        watched = [self._reader, state_reader]
        pause_s = 0.0005
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready, _, _ = select.select(watched, [], [], min(left, pause_s))
            pause_s = 0.0005 if ready else min(2 * pause_s, 0.02)
            if self._reader in ready:
                output.add(os.read(self._reader, _CHUNK))
            if state_reader in ready and not self._read_state(state_reader, state):
                watched.remove(state_reader)
        while state_reader in watched and select.select([state_reader], [], [], 0)[0]:
            if not self._read_state(state_reader, state):
                break
        return True

    def _read_state(self, reader: int, state: bytearray) -> bool:
        data = os.read(reader, _CHUNK)
        state += data
        return bool(data) and len(state) < _DRAINED

    def _interrupt(
        self,
        process: subprocess.Popen[bytes],
        output: Output,
        state_reader: int,
        state: bytearray,
    ) -> None:
        """End a command: as by Ctrl-C, and if it does not end, by force."""
        for number, patience_s in ((signal.SIGINT, _INTERRUPT_S), (signal.SIGTERM, _INTERRUPT_S)):
            self._send(process, number)
            if self._wait(process, output, state_reader, state, patience_s):
                return
        self._send(process, signal.SIGKILL)
        self._wait(process, output, state_reader, state, _KILL_S)

    def _send(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Signal a command's processes. Without a group of its own, all but this process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid in self._groups:
                os.killpg(process.pid, number)
            elif number == signal.SIGKILL:
                process.kill()
            else:
                before = signal.signal(number, signal.SIG_IGN)
                os.killpg(0, number)
                signal.signal(number, before)

    def _end_jobs(self) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._groups = []

    def _drain(self, output: Output) -> None:
        """Read what is waiting in the pipe."""
        for _ in range(_DRAINED // _CHUNK):
            try:
                output.add(os.read(self._reader, _CHUNK))
            except BlockingIOError:
                return

    # ---- files -----------------------------------------------------------------------------

    def read(self, path: str, max_bytes: int) -> dict[str, Any]:
        """The content of a regular file."""
        descriptor = self._open(path, os.O_RDONLY)
        try:
            if (size := os.fstat(descriptor).st_size) > max_bytes:
                return {"too_big": size}
            data = os.read(descriptor, max_bytes + 1)
            while len(data) <= max_bytes and (more := os.read(descriptor, max_bytes + 1)):
                data += more
        finally:
            os.close(descriptor)
        if len(data) > max_bytes:
            return {"too_big": len(data)}
        return {"data": base64.b64encode(data).decode()}

    def write(self, path: str, text: str, append: bool) -> dict[str, Any]:
        """Write or continue a file; ``text`` is its content in base64."""
        whole = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        flags = os.O_APPEND if append else os.O_CREAT | os.O_TRUNC
        descriptor = self._open(path, os.O_WRONLY | flags)
        with open(descriptor, "wb") as file:
            file.write(base64.b64decode(text))
        return {}

    def _open(self, path: str, flags: int) -> int:
        # O_NONBLOCK: a named pipe must not hang this process.
        descriptor = os.open(os.path.join(self.folder, path), flags | os.O_NONBLOCK, 0o644)
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            os.close(descriptor)
            if stat.S_ISDIR(kind):
                raise IsADirectoryError(21, "Is a directory")
            raise OSError(22, "Not a regular file")
        return descriptor

    # ---- copies ----------------------------------------------------------------------------

    def pack(self, max_bytes: int) -> dict[str, Any]:
        """The files as an archive, and the shell's state."""
        total = 0
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for folder, folders, files in os.walk(self.folder):
                for name in sorted(folders + files):
                    path = os.path.join(folder, name)
                    status = os.lstat(path)
                    total += status.st_size + 1024
                    if total > max_bytes:
                        return {"refused": f"its files have more than {max_bytes} bytes"}
                    if stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                        archive.add(path, os.path.relpath(path, self.folder), recursive=False)
        self._packed = buffer.getvalue()
        state = base64.b64encode(self._state).decode()
        return {"size": len(self._packed), "state": state, "folder": self.folder}

    def packed(self, start: int, end: int) -> dict[str, Any]:
        """A part of the archive that ``pack`` made."""
        return {"data": base64.b64encode(self._packed[start:end]).decode()}

    def unpack(self, path: str, state: str, folder: str) -> dict[str, Any]:
        """Continue as the workspace whose archive is the file ``path``."""
        with tarfile.open(os.path.join(self.folder, path)) as archive:
            _check_members(archive.getmembers())
            archive.extraction_filter = lambda member, _: member
            archive.extractall(self.folder)
        os.unlink(os.path.join(self.folder, path))
        here, there = self.folder.encode(), folder.encode()
        self._state = base64.b64decode(state).replace(there, here)
        return {}

    def serve(self, method: str, *arguments: Any) -> str:
        """Call a method; the answer, or the error of the operating system, as JSON."""
        try:
            answer = getattr(self, method)(*arguments)
        except OSError as error:
            answer = {"errno": error.errno or 5, "message": error.strerror or str(error)}
        return json.dumps(answer)


def _check_members(members: list[tarfile.TarInfo]) -> None:
    """Check that an archive, which an agent may have made, writes only below its folder.

    Raises:
        OSError: a member leads elsewhere, by its own name or through a link of the archive.
    """
    links = {os.path.normpath(member.name) for member in members if member.issym()}
    for member in members:
        for name in [member.name, *([member.linkname] if member.islnk() else [])]:
            parts = os.path.normpath(name).split("/")
            above = {"/".join(parts[:count]) for count in range(1, len(parts))}
            if name.startswith("/") or parts[0] == ".." or above & links:
                raise OSError(22, f"the archive leads out of its folder: {name[:100]!r}")

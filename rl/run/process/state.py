"""Writes, reads and interprets ``status.json``, a run's status, written every few seconds.

The run replaces the whole file, so a reader never sees parts of two statuses. A killed run leaves
its last status behind. The reader therefore checks whether the run's process exists.
"""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.settings.parsing.files import like_folder

FILE = "status.json"
RUNNING, STALLED, ENDING = "running", "stalled", "ending"
FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"
DEAD, SILENT = "dead", "silent"
"""States that the reader infers; a run never writes them. DEAD: the process ended without recording
its end. SILENT: the process is not visible from here, and has written no status for
:data:`SILENT_S` seconds."""
OVER = (FINISHED, INTERRUPTED, FAILED)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "int | None": (int, type(None)),
}
"""Python types of the fields' JSON values, by annotation."""
_FILE_KEYS = {"component_status": "parts", "message": "told"}
"""Keys in status.json of the fields whose key differs from their name. Earlier versions wrote these
keys."""
_WAIT = {"lane": "str", "name": "str", "state": "str", "seconds": "float"}
_SHOWN = 80
SILENT_S = 60.0
"""A run whose process is not visible counts as SILENT if its status is this many seconds old."""


@dataclass(kw_only=True)
class RunState:
    """Status of a run at one moment."""

    state: str
    step: int
    """Number of steps that are done."""
    steps: int
    """Number of steps of the whole run."""
    pid: int
    born: str
    """Start time of the process as the system records it, because another process may get its
    pid."""
    host: str
    began: float
    """Unix time of the start of the run."""
    written: float
    """Unix time at which the status was written."""
    progress_s: float
    """Seconds since the last progress."""
    progress: str
    """Description of the last progress."""
    loop_s: float
    """Seconds since the last response of the event loop."""
    waits: list[dict[str, Any]] = field(default_factory=list)
    """Running activities (lane, name, state, seconds), at most a hundred, longest first."""
    num_waits: int = 0
    """Number of all running activities."""
    component_status: dict[str, str] = field(default_factory=dict)
    """What each component of the policy is doing, by the component's name."""
    recoveries: int = 0
    """Number of times that the watchdog restarted waiting episodes."""
    message: str = ""
    """What went wrong, and what the watchdog did about it."""
    exit_code: int | None = None
    """Exit code of the process, if it was written before the process ended; otherwise None."""
    finished_step: int | None = None
    """Number of steps after which the run had finished, if this process continues a finished run.
    """
    namespace: str = ""
    """PID namespace of the process, or "" if unknown. Each container on a host may have its own."""

    @property
    def verdict(self) -> str:
        """The run's state, or :data:`DEAD` or :data:`SILENT` if the process recorded no end.

        A finished run stays finished if a later process made no further step.
        """
        if self.state in OVER or (self.state == STALLED and self.exit_code is not None):
            return self.state
        if self.alive:
            return self.state
        if not self.visible:
            return SILENT
        return FINISHED if self.step == self.finished_step else DEAD

    @property
    def visible(self) -> bool:
        """Whether the run's process, if it exists, is visible to the reader's process."""
        return self.host == platform.node() and self.namespace in ("", namespace())

    @property
    def alive(self) -> bool:
        """Whether the process exists, as far as this can be known from here."""
        if not self.visible:
            return self.age_s < SILENT_S
        return born_at(self.pid) == self.born

    @property
    def age_s(self) -> float:
        """Seconds since the status was written."""
        return max(0.0, time.time() - self.written)


def write_state(folder: Path, state: RunState) -> None:
    """Replace the file, without flushing it to the disk.

    Raises:
        OSError: the file cannot be written.
    """
    partial = folder / f".{FILE}.tmp"
    record = {_FILE_KEYS.get(key, key): value for key, value in asdict(state).items()}
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / FILE)


def restore_finished(folder: Path, step: int) -> None:
    """Correct the status of a run that finished after ``step``, if a later process changed it."""
    with suppress(UsageError, OSError):  # An earlier version wrote none.
        state = read_state(folder)
        if state.state != FINISHED:
            done = replace(state, state=FINISHED, step=step, steps=step, message="", exit_code=None)
            write_state(folder, done)


def read_state(folder: Path) -> RunState:
    """The last status of a run.

    Raises:
        UsageError: the folder holds no readable status.
    """
    path = folder / FILE
    try:
        names = {key: name for name, key in _FILE_KEYS.items()}
        record = json.loads(path.read_text(encoding="utf-8"))
        state = RunState(**{names.get(key, key): value for key, value in record.items()})
        _check(state)
        return state
    except FileNotFoundError as error:
        raise UsageError(_no_run(folder)) from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{folder} holds no status of a run: {path} cannot be read ({error})"
        ) from error


def _no_run(folder: Path) -> str:
    """An error message: why the folder has no status, and which folder to pass instead."""
    if not folder.is_dir():
        return f"run ({folder}) does not exist: no such folder.{like_folder(folder)}"
    if (folder / "config.json").is_file():
        return (
            f"run ({folder}) has no {FILE}: rl.train writes one, other commands do not; their "
            f"numbers are in metrics.jsonl and result.json"
        )
    inner = sorted(str(path.parent) for path in folder.glob(f"*/{FILE}"))
    give = f"give one of {', '.join(inner)}" if inner else "give the folder of a run of rl.train"
    return f"run ({folder}) holds no run: {give}"


def _check(state: RunState) -> None:
    """Check the type of every value, so that it can be shown.

    Raises:
        ValueError: a value has a wrong type. The message names the first.
    """
    if state.state not in (*OVER, RUNNING, STALLED, ENDING):
        raise _wrong("state", state.state, f"one of {RUNNING}, {STALLED}, {ENDING}, {OVER}")
    for one in fields(state):
        if str(one.type) in _TYPES:
            key = _FILE_KEYS.get(one.name, one.name)
            _check_value(key, getattr(state, one.name), str(one.type))
    if not isinstance(state.waits, list):
        raise _wrong("waits", state.waits, "a list")
    for wait in state.waits:
        if not isinstance(wait, dict) or wait.keys() != _WAIT.keys():
            raise _wrong("waits", wait, "lane, name, state and seconds")
        for name, kind in _WAIT.items():
            _check_value(name, wait[name], kind)
    if not isinstance(state.component_status, dict):
        raise _wrong("parts", state.component_status, "a dict")
    for name, does in state.component_status.items():
        _check_value(name, does, "str")


def _check_value(name: str, value: object, kind: str) -> None:
    # In Python, True is an int.
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        raise _wrong(name, value, kind.replace(" | ", " or "))


def _wrong(name: str, value: object, expected: str) -> ValueError:
    shown = repr(value)
    return ValueError(
        f"{name} ({shown if len(shown) < _SHOWN else shown[:_SHOWN] + '...'}) must be {expected}"
    )


def born_at(pid: int) -> str:
    """Start time of a process, or "" if the process does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _born_elsewhere(pid)
    return "" if fields[0] in "ZX" else fields[19]


def namespace() -> str:
    """The PID namespace of this process, or "" on systems without namespaces."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _born_elsewhere(pid: int) -> str:
    """On a system without /proc, "running" if the process exists, otherwise ""."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "running"
    return "running"

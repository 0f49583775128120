"""What a run says of itself while it goes on, in ``status.json``; and what it says of the run.

The file is replaced as a whole every few seconds, so a reader sees one moment. A run whose process
was killed left the last one behind: whether the process is there tells them apart.
"""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.settings.files import like_folder

FILE = "status.json"
RUNNING, STALLED, ENDING = "running", "stalled", "ending"
FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"
DEAD, SILENT = "dead", "silent"
"""Its process is gone and did not say how it ended; or nobody here can see whether it is, and it
wrote nothing for long. Never written, only found."""
OVER = (FINISHED, INTERRUPTED, FAILED)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "int | None": (int, type(None)),
}
"""Of the fields below, as they are written, to what JSON has for them."""
_WAIT = {"lane": "str", "name": "str", "state": "str", "seconds": "float"}
_SHOWN = 80
SILENT_S = 60.0
"""A run that wrote nothing for so long, and whose process cannot be seen, may be dead."""


@dataclass(kw_only=True)
class RunState:
    """A moment of a run."""

    state: str
    step: int
    """Steps done."""
    steps: int
    """Steps of the whole run."""
    pid: int
    born: str
    """When the process began, as the system counts: another one may get its number."""
    host: str
    began: float
    """Seconds since 1970, as the next one."""
    written: float
    progress_s: float
    """Seconds since something got further."""
    progress: str
    """What it was."""
    loop_s: float
    """Seconds since the event loop answered."""
    waits: list[dict[str, Any]] = field(default_factory=list)
    """What is under way (lane, name, state, seconds), the oldest first; of many, the oldest."""
    num_waits: int = 0
    """How many there are."""
    parts: dict[str, str] = field(default_factory=dict)
    """What each part of the policy does."""
    recoveries: int = 0
    """How often waiting episodes were begun again because nothing got further."""
    told: str = ""
    """What went wrong, or was done about it."""
    exit_code: int | None = None
    """Of the process, where it said so before its end."""
    namespace: str = ""
    """Where the number of the process counts: on one host each container may have its own. "":
    nobody knows."""

    @property
    def verdict(self) -> str:
        """The state; :data:`DEAD` or :data:`SILENT` where the process has not said its end."""
        if self.state in OVER or (self.state == STALLED and self.exit_code is not None):
            return self.state
        if self.alive:
            return self.state
        return DEAD if self.visible else SILENT

    @property
    def visible(self) -> bool:
        """Whether its process can be seen from here, where there is one."""
        return self.host == platform.node() and self.namespace in ("", namespace())

    @property
    def alive(self) -> bool:
        """Whether its process is there, as far as that can be known here."""
        if not self.visible:
            return self.age_s < SILENT_S
        return born_at(self.pid) == self.born

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.written)


def write_state(folder: Path, state: RunState) -> None:
    """Replace the file; not forced to the disk, for it is of this moment only.

    Raises:
        OSError: it cannot be written.
    """
    partial = folder / f".{FILE}.tmp"
    partial.write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / FILE)


def read_state(folder: Path) -> RunState:
    """What a run said last.

    Raises:
        UsageError: the folder holds no run that says so.
    """
    path = folder / FILE
    try:
        state = RunState(**json.loads(path.read_text(encoding="utf-8")))
        _check(state)
        return state
    except FileNotFoundError as error:
        raise UsageError(_no_run(folder)) from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{folder} holds no run that says how it is: {path} cannot be read ({error})"
        ) from error


def _no_run(folder: Path) -> str:
    """Why a folder has no state, and what to give instead."""
    if not folder.is_dir():
        return f"run ({folder}) is not there: no such folder.{like_folder(folder)}"
    if (folder / "config.json").is_file():
        return (
            f"run ({folder}) has no {FILE}: rl.train writes one, other commands do not; their "
            f"numbers are in metrics.jsonl and result.json"
        )
    inner = sorted(str(path.parent) for path in folder.glob(f"*/{FILE}"))
    give = f"give one of {', '.join(inner)}" if inner else "give the folder of a run of rl.train"
    return f"run ({folder}) holds no run: {give}"


def _check(state: RunState) -> None:
    """See that every value is of its type: whoever shows one counts on it.

    Raises:
        ValueError: names the first that is not.
    """
    if state.state not in (*OVER, RUNNING, STALLED, ENDING):
        raise _wrong("state", state.state, f"one of {RUNNING}, {STALLED}, {ENDING}, {OVER}")
    for one in fields(state):
        if str(one.type) in _TYPES:
            _check_value(one.name, getattr(state, one.name), str(one.type))
    if not isinstance(state.waits, list):
        raise _wrong("waits", state.waits, "a list")
    for wait in state.waits:
        if not isinstance(wait, dict) or wait.keys() != _WAIT.keys():
            raise _wrong("waits", wait, "lane, name, state and seconds")
        for name, kind in _WAIT.items():
            _check_value(name, wait[name], kind)
    if not isinstance(state.parts, dict):
        raise _wrong("parts", state.parts, "a dict")
    for name, does in state.parts.items():
        _check_value(name, does, "str")


def _check_value(name: str, value: object, kind: str) -> None:
    # To Python, True is a number.
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        raise _wrong(name, value, kind.replace(" | ", " or "))


def _wrong(name: str, value: object, expected: str) -> ValueError:
    shown = repr(value)
    return ValueError(
        f"{name} ({shown if len(shown) < _SHOWN else shown[:_SHOWN] + '...'}) must be {expected}"
    )


def born_at(pid: int) -> str:
    """When a process began; empty where there is none, or only what its parent has not fetched."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _born_elsewhere(pid)
    return "" if fields[0] in "ZX" else fields[19]


def namespace() -> str:
    """Where numbers of processes count as they do here; empty where a system has no such places."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _born_elsewhere(pid: int) -> str:
    """Of a system without /proc nothing but whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "running"
    return "running"

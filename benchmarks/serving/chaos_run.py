"""A training run to which faults happen at random times."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving.chaos_faults import (
    Disk,
    cut_connections,
    hang_server,
    kill_server,
    servers_of,
)
from benchmarks.serving.task_ledger import last_step

Way = Callable[[int, random.Random], str]
"""Makes a fault happen to a run, given the id of its process; says what it did."""
HERE: dict[str, Way] = {
    "kill the server": kill_server,
    "cut connections": cut_connections,
    "hang a server": hang_server,
}
PROGRESS = 2
"""Steps that a run must make after each fault before the next one."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Other machines on which parts of a run are.

    Args:
        words: of the command line, which place them there.
        environment: variables of the run's process.
        faults: those that happen there, by name.
        left: lists the run's processes and files that remain there, by kind.
    """

    words: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Way] = field(default_factory=dict)
    left: Callable[[], Mapping[str, list[str]]] = dict


NOWHERE = Elsewhere()
"""All parts of the run are on this machine."""


@dataclass
class Chaos:
    """A disturbed run: starts it, starts it again, and keeps a record.

    Args:
        words: of the command line, without ``out``.
        disk: where its folder lies.
        elsewhere: the run's other machines.
        seed: of what happens when.
        patience_s: in which a run must make its next step, whatever happened to it.
    """

    words: Sequence[str]
    disk: Disk
    elsewhere: Elsewhere
    seed: int = 0
    patience_s: float = 900.0
    happened: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Violations, one line each."""

    def __post_init__(self) -> None:
        self.out = self.disk.folder / "run"
        self.log = self.disk.folder.parent / "chaos.log"
        self._rng = random.Random(self.seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    def play(self, faults: Mapping[str, int], minutes: float) -> int:
        """Inject the given numbers of faults at random times; return the last step."""
        kinds = [kind for kind, count in faults.items() for _ in range(count)]
        self._rng.shuffle(kinds)
        times = sorted(self._rng.uniform(0, 60 * minutes) for _ in kinds)
        try:
            self._start()
            self._progress()
            for kind, at_s in zip(kinds, times, strict=True):
                time.sleep(max(0.0, self._began + at_s - time.monotonic()))
                # Also where a step is short: not always at its beginning.
                time.sleep(self._rng.uniform(0, 1.5))
                self._befall(kind)
            self._stop()
        finally:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        return last_step(self.out)

    def _befall(self, kind: str) -> None:
        assert self._process is not None
        pid, before, began = self._process.pid, self._step(), time.monotonic()
        what = self._ways()[kind](pid, self._rng)
        after = self._progress()
        record = {"what": kind, "how": what, "at_s": round(began - self._began, 1)}
        self.happened.append(
            record | {"step": before, "two_steps_s": round(after - began, 1) if after else None}
        )

    def _ways(self) -> dict[str, Way]:
        own = {"kill the learner": self._kill_learner, "fill the disk": self._fill_disk}
        return HERE | own | dict(self.elsewhere.faults)

    def _kill_learner(self, pid: int, _: random.Random) -> str:
        assert self._process is not None
        left = servers_of(pid)
        self._process.kill()
        self._process.wait()
        self._start()
        return f"SIGKILL, with {len(left)} processes of its server"

    def _fill_disk(self, pid: int, _: random.Random) -> str:
        how = self.disk.fill(pid)
        assert self._process is not None
        try:
            code = self._process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self.wrong.append("a full disk did not end the run, nor did it go on")
            self._process.kill()
            code = self._process.wait()
        last = self.log.read_text(errors="replace").splitlines()[-1]
        if code != 1 or not last.startswith("error: ") or "cannot be" not in last:
            self.wrong.append(f"a full disk ended the run with {code}, saying: {last}")
        self.disk.free()
        self._start()
        return f"{how}: {last.replace(str(self.disk.folder), '')}"

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rl.train", *self._all_words()],
                env=os.environ | self.elsewhere.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _all_words(self) -> list[str]:
        return [*self.words, *self.elsewhere.words, f"out={self.out}"]

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self.wrong.append("it did not end when it was asked to")
            return
        if code != 130:
            self.wrong.append(f"it ended with {code} when it was asked to stop")
        if "Traceback" in self.log.read_text(errors="replace"):
            self.wrong.append("there is a traceback in its log")

    def _progress(self) -> float | None:
        """Wait for ``PROGRESS`` steps from now on; when they were there, or None: they were not."""
        assert self._process is not None
        reported, end = self._reported(), time.monotonic() + self.patience_s
        while time.monotonic() < end:
            if len(self._reported()) >= len(reported) + PROGRESS:
                return time.monotonic()
            if (code := self._process.poll()) is not None:
                last = self.log.read_text(errors="replace").splitlines()[-1:]
                self.wrong.append(f"it ended with {code}, saying: {last}")
                self._start()
            time.sleep(0.1)
        self.wrong.append(f"no {PROGRESS} steps came within {self.patience_s:g} s")
        return None

    def _step(self) -> int:
        """The last step that was done."""
        return max(self._reported()[-1:], default=0)

    def _reported(self) -> list[int]:
        """Every reported step, including repeated ones."""
        text = self.log.read_text(errors="replace")
        return [int(step) for step in re.findall(r"^step (\d+)/", text, re.MULTILINE)]

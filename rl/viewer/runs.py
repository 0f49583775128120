"""Finds the runs below a folder, and reads their settings, metrics, result and status."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from rl.errors import UsageError
from rl.run.process import state as states
from rl.run.process.state import RunState, read_state
from rl.settings.parsing.files import RECORD
from rl.viewer.chat_facts import chat_facts
from rl.viewer.episodes.index import EpisodeIndex, database_of
from rl.viewer.episodes.tokens import Decoder, decoder_of
from rl.viewer.finding import Finding, Played, RunData
from rl.viewer.findings import READ_STEPS, findings, read_played

MAKE = "python -m rl.train env=search-qa makes a run in runs/"
"""Advice for a folder without runs."""
UNFINISHED = "unfinished"
"""State of a run of a command that writes no status, before it saves its model."""
FINDING_S = 0.5
"""Seconds that an answer waits for findings from tokens."""
_DEPTH = 4
"""How many levels below the folder a run may be."""
_MARKS = ("metrics.jsonl", "trajectories", "result.json")
"""A folder with one of these is a run."""
_MOST_BYTES = 150_000_000
"""Size of the newest steps' tokens up to which findings read them, so that a page opens in time."""
_MOST_STEPS = 1 << 53
_NAMED = 3
"""Maximum number of runs that a message names."""
_HIDDEN = ("checkpoints", "trajectories", "logs")


class Run:
    """The files of one run, read again as they change. Methods can be called from any thread.

    Args:
        name: the name in links; the path below the viewer's folder.
        folder: the run's folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._lock = threading.Lock()
        self._metrics: list[dict[str, Any]] = []
        self._decoder = Decoder(None)
        self._finding = threading.Lock()
        self._reader: ThreadPoolExecutor | None = None
        """The thread that makes the findings, because they read tokens."""
        self._checked: tuple[int, Future[list[dict[str, Any]]]] | None = None
        """The number of records from which the newest findings are made, and the findings."""
        self._problems: list[dict[str, Any]] | None = None
        """The findings that were made last."""
        self._seen: tuple[int, list[dict[str, Any]]] | None = None
        """The number of records, and the findings from these alone."""
        self._read: tuple[int, int] = (0, 0)
        """The inode of metrics.jsonl, and the number of bytes that were read."""

    @cached_property
    def index(self) -> EpisodeIndex:
        """The index of the run's episodes."""
        return EpisodeIndex(self.trajectories, database_of(self.folder))

    @property
    def decoder(self) -> Decoder:
        """Decodes the run's token ids. A tokenizer that is not there yet is looked for again."""
        if not self._decoder.known:
            self._decoder = decoder_of(self.folder, str(self.config().get("model", "")))
        return self._decoder

    @property
    def trajectories(self) -> Path:
        """The folder of the run's episodes."""
        return self.folder / "trajectories"

    def problems(self, seconds: float = FINDING_S) -> tuple[list[dict[str, Any]], bool]:
        """The run's findings, the most important first, each with a query or a list of episodes.

        They are made again when a step is done. A thread reads the tokens of the newest steps.

        Returns:
            The findings, and whether they are complete. Those that are not complete after
            ``seconds`` are the earlier ones, or those from the metrics alone.
        """
        records = self.metrics()
        with self._finding:
            if self._checked is None or (
                self._checked[1].done() and self._checked[0] != len(records)
            ):
                self._reader = self._reader or ThreadPoolExecutor(1, "viewer-findings")
                self._checked = len(records), self._reader.submit(self._find, records)
            checked = self._checked[1]
        try:
            self._problems = checked.result(seconds)
        except TimeoutError:
            if self._problems is None:
                return self._findings_of(records, [], ""), False
            return self._problems, False
        return self._problems, True

    def worst(self) -> dict[str, Any] | None:
        """The most important finding, or None if there is none.

        The list of runs shows it for each run, so it reads no tokens: until a reader has opened the
        run, it is the most important one that the metrics show.
        """
        records = self.metrics()
        if self._problems is not None:
            found = self._problems
        elif self._seen is not None and self._seen[0] == len(records):
            found = self._seen[1]
        else:
            found = self._findings_of(records, [], "")
            self._seen = len(records), found
        return found[0] if found else None

    def close(self) -> None:
        """Close the index, and wait for the thread that makes the findings."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        if "index" in vars(self):
            self.index.close()

    def _find(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        newest = sorted(self.trajectories.glob("step-*.npz"))[-2 * READ_STEPS :]
        size = sum(path.stat().st_size for path in newest)
        played, unread = list[Played](), ""
        if size > _MOST_BYTES:
            unread = f"Their files have {size / 1e6:.0f} MB, more than the viewer reads for this."
        else:
            try:
                played = read_played(self.trajectories)
            except (UsageError, OSError, LookupError, ArithmeticError, RecursionError) as error:
                unread = str(error)
        return self._findings_of(records, played, unread)

    def _findings_of(
        self, records: list[dict[str, Any]], played: list[Played], unread: str
    ) -> list[dict[str, Any]]:
        """The findings from these records and episodes; ``unread`` says why there are none."""
        config = self.config()
        try:
            numbers = [_numbers(record) for record in records]
            found = findings(RunData(numbers, played, config, chat_facts(self.folder, config)))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            why = f"config.json or metrics.jsonl has another form than expected: {error!r}"
            found = [Finding("unread", "low", "The run was not checked.", why, "", ())]
        if unread:
            title = "The tokens of the newest steps were not checked."
            found.append(Finding("unread", "low", title, unread, "", ()))
        return [as_problem(finding) for finding in found]

    def config(self) -> dict[str, Any]:
        """The run's settings, as they were when it was resumed last. Empty if it wrote none."""
        return _json(self.folder / RECORD)

    def result(self) -> dict[str, Any]:
        """The content of result.json. Empty before the end of the run."""
        return _json(self.folder / "result.json")

    def versions(self) -> dict[str, Any]:
        """The content of versions.json. Empty if there is none."""
        return _json(self.folder / "versions.json")

    def state(self) -> dict[str, Any]:
        """The run's state for the page, its number of steps, and what went wrong in one line."""
        try:
            state = read_state(self.folder)
        except UsageError:  # Only rl.train writes a status.
            return {"verdict": self._state_of_files(), "steps": None, "message": "", "cause": ""}
        return {
            "verdict": state.verdict,
            "steps": state.steps,
            "message": state.message,
            "cause": _cause(state),
        }

    def _state_of_files(self) -> str:
        """The state of a run without a status. Empty if its files do not show it."""
        if result := self.result():
            return states.FINISHED if result.get("finished", True) else states.INTERRUPTED
        if (self.folder / "checkpoints" / "last").is_dir():
            return states.FINISHED
        return UNFINISHED if self.metrics() else ""

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl so far. Only new lines are read."""
        path = self.folder / "metrics.jsonl"
        with self._lock:
            try:
                stat = path.stat()
                inode, done = self._read
                if inode != stat.st_ino or done > stat.st_size:
                    # A resumed run replaces the file.
                    self._metrics, done = [], 0
                if done < stat.st_size:
                    with path.open("rb") as file:
                        file.seek(done)
                        block = file.read()
                    whole = block[: block.rfind(b"\n") + 1]
                    self._metrics += _records(whole)
                    done += len(whole)
                self._read = (stat.st_ino, done)
            except OSError:
                # The file of a run that starts anew may get the same inode.
                self._metrics, self._read = [], (0, 0)
            return [*self._metrics]


class Runs:
    """All runs at or below a folder.

    Raises:
        UsageError: the folder does not exist.
    """

    def __init__(self, root: Path) -> None:
        if not _reaches(root.is_dir):
            kind = "is a file" if _reaches(root.exists) else "does not exist"
            raise UsageError(
                f"run ({root}) {kind}: give a run's folder or a folder of runs; {MAKE}"
            )
        self.root = root
        self._runs: dict[str, Run] = {}

    @property
    def single(self) -> bool:
        """Whether the folder itself is a run."""
        return _is_run(self.root)

    def find(self) -> dict[str, Run]:
        """The runs by name. A run that was found before stays the same object."""
        folders = (
            {_name(self.root.resolve().name): self.root} if self.single else dict(self._below())
        )
        self._runs = {
            name: self._runs.get(name) or Run(name, folder) for name, folder in folders.items()
        }
        return self._runs

    def run(self, name: str) -> Run:
        """The run with this name.

        Raises:
            UsageError: there is none.
        """
        found = self._runs.get(name)
        if found is None or not _is_run(found.folder):
            found = self.find().get(name)
        if found is None:
            raise UsageError(f"run={name}: there is no such run below {self.root}")
        return found

    def only(self) -> str:
        """The name of the only run.

        Raises:
            UsageError: there are several, or none.
        """
        names = list(self.find())
        if not names:
            raise UsageError(f"run ({self.root}) holds no run: {MAKE}")
        if len(names) > 1:
            some = ", ".join(str(self.root / name) for name in names[:_NAMED])
            rest = f", ... ({len(names)} in all)" if len(names) > _NAMED else ""
            raise UsageError(
                f"run ({self.root}) holds {len(names)} runs: give the folder of one: {some}{rest}"
            )
        return names[0]

    def close(self) -> None:
        """Close the indices and threads of all runs."""
        for run in self._runs.values():
            run.close()

    def _below(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        level = [self.root]
        for _ in range(_DEPTH):
            inner = [path for folder in level for path in _folders(folder)]
            found |= {_name(p.relative_to(self.root)): p for p in inner if _is_run(p)}
            level = [path for path in inner if path.name not in _HIDDEN]
        return dict(sorted(found.items()))


def as_problem(finding: Finding) -> dict[str, Any]:
    """A finding for the page: its episodes as a query, or as a list of files and lines."""
    given = finding.episodes
    query = dict(given) if isinstance(given, Mapping) else {}
    named = () if isinstance(given, Mapping) else given
    return {
        "key": finding.key,
        "severity": finding.severity,
        "title": finding.title,
        "detail": finding.detail,
        "advice": finding.advice,
        "steps": list(finding.steps),
        "query": query,
        "episodes": [{"file": file, "line": line} for file, line in named],
        "show": _shown(finding),
        "cause": finding.cause,
    }


def _shown(finding: Finding) -> dict[str, str]:
    """The view in which the page opens the finding's named episodes."""
    if finding.view:
        return {"show": finding.view}
    return {"show": "tokens", "colour": finding.colour} if finding.colour else {}


def _name(path: Path | str) -> str:
    """A path for links. Bytes that are no UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _folders(folder: Path) -> list[Path]:
    try:
        inner = sorted(folder.iterdir())
    except OSError:
        return []
    return [p for p in inner if not p.name.startswith(".") and _reaches(p.is_dir)]


def _is_run(folder: Path) -> bool:
    """Whether the folder is a run. A folder that this user may not read is none."""
    return any(_reaches((folder / name).exists) for name in _MARKS)


def _reaches(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:
        return False


def _cause(state: RunState) -> str:
    """Why a run ended too early or makes no progress, in one line. Empty if neither is so."""
    verdict = state.verdict
    if verdict == states.INTERRUPTED:
        done = f"after step {state.step} of {state.steps}"
        done = done if state.step else "before its first step was done"
        return f"Ctrl-C or SIGTERM stopped the run {done}."
    if verdict == states.DEAD:
        return "The process is gone and left no reason."
    if verdict == states.SILENT:
        return f"The process on {state.host} is not visible from here, and writes nothing."
    if verdict not in (states.FAILED, states.STALLED, states.ENDING):
        return ""
    return " ".join(state.message.split()) or "No reason was recorded."


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(path: Path) -> bytes:
    """The content of a file. Empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _records(block: bytes) -> list[dict[str, Any]]:
    """The records in lines of metrics.jsonl. Lines without the number of a step are left out."""
    records = []
    for line in block.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, Mapping) and _is_step(record.get("step")):
            records.append(dict(record))
    return records


def _is_step(value: object) -> bool:
    return isinstance(value, int) and abs(value) < _MOST_STEPS


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without values that are no finite numbers."""
    largest = sys.float_info.max
    return {k: v for k, v in record.items() if isinstance(v, int | float) and abs(v) <= largest}

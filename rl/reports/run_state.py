"""A probe of a run's folder: settings, status, last metrics, failures and logs."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import deque
from pathlib import Path
from typing import Any

from rl.api.results import read_run
from rl.errors import UsageError
from rl.reports.differences import read_recorded
from rl.reports.probes import Facts, Probe
from rl.run.process import state as states
from rl.run.process.state import read_state
from rl.run.process.watchdog import REPORT
from rl.status import lines

_BROKEN = (states.FAILED, states.STALLED, states.DEAD)
_TAIL_LINES = 20
_MOST_FAILURES = 3
_TAIL_BYTES = 1 << 16


def run_in(folder: Path) -> Probe:
    """A probe of the run in ``folder``.

    Raises:
        UsageError: the folder holds no run.
    """
    recorded = read_recorded(folder)

    def probe(deadline_s: float) -> Facts:
        facts = Facts({"command": recorded.command, "changed_settings": dict(recorded.changed)})
        _add_status(folder, facts)
        file = folder / "versions.json"
        if file.is_file():
            facts.values["versions"] = json.loads(file.read_text(encoding="utf-8"))
        run = read_run(folder)
        metrics = run.metrics or (run.history or [{}])[-1]
        if metrics:
            facts.values["last_metrics"] = {k: _short(v) for k, v in metrics.items()}
        failures = _last_failures(folder / "trajectories")
        if failures:
            facts.values["failures"] = failures
        logs = [folder / REPORT, *sorted((folder / "logs").glob("*.log"))]
        tails = {str(log.relative_to(folder)): _tail(log) for log in logs if log.is_file()}
        if tails:
            facts.values["logs"] = tails
        return facts

    return probe


def _add_status(folder: Path, facts: Facts) -> None:
    try:
        state = read_state(folder)
    except UsageError:
        # Only rl.train writes a status.
        return
    shown = [line.replace(f" on {state.host}", "") for line in lines(state)]
    facts.values["status"] = shown
    if state.verdict in _BROKEN:
        facts.problems.append("; ".join(shown))


def _last_failures(folder: Path) -> list[str]:
    """The failures of the newest step that has any, as far as its file can be read."""
    for path in sorted(folder.glob("step-*.jsonl.gz"), reverse=True)[:_MOST_FAILURES]:
        found: deque[str] = deque(maxlen=_MOST_FAILURES)
        try:
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
                for line in file:
                    if failure := json.loads(line).get("failure"):
                        found.append(f"{path.name.partition('.')[0]}: {failure}")
        except (OSError, EOFError, ValueError, zlib.error) as error:
            return [f"{path.name} cannot be read: {error}"]
        if found:
            return list(found)
    return []


def _tail(path: Path) -> list[str]:
    """The last lines of a text file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-_TAIL_LINES:]


def _short(value: Any) -> Any:
    """A metric with six significant digits; JSON has no infinite numbers."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)

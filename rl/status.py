"""``python -m rl.status runs/search``: the status of a run, during it or afterwards.

The command reads the status that a run writes every two seconds, and checks whether its process
exists. ``follow=true`` repeats this until the run ends. The exit code is 0 for finished, 10 for
running, 11 for no progress, 12 for killed, 13 for stopped by a user, 14 for failed, and 15 for a
run whose process is not visible from here and which has been silent for a minute.
"""

from __future__ import annotations

import io
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl.files import write_stdout
from rl.run.process import state as states
from rl.run.process.command import run_command
from rl.run.process.state import RunState, read_state
from rl.settings.parsing.from_python import from_python

EXIT_CODES = {
    states.FINISHED: 0,
    states.RUNNING: 10,
    states.ENDING: 10,
    states.STALLED: 11,
    states.DEAD: 12,
    states.INTERRUPTED: 13,
    states.FAILED: 14,
    states.SILENT: 15,
}
_LATE_S = 15.0
"""Seconds without a write after which a live run counts as suspended or unable to write."""


@from_python
@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Show the status of a run."""

    run: str
    """The run's folder. "run=" may be omitted."""
    follow: bool = False
    """Repeat until the run ends."""
    every_s: float = 2.0
    """Seconds between two readings."""
    most: int = 20
    """Maximum number of activities to show. The longest waits come first."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        if not 0 < self.every_s < 3600:
            raise ValueError(f"every_s ({self.every_s}) must be above 0 and below 3600")
        if self.most < 0:
            raise ValueError(f"most ({self.most}) must be >= 0")


def lines(state: RunState) -> list[str]:
    """The status of a run in a few lines."""
    verdict = state.verdict
    shown = [f"{verdict}  step {state.step}/{state.steps}  process {state.pid} on {state.host}"]
    if verdict == states.DEAD:
        shown.append(
            f"the process is gone and left no reason; its last status is from "
            f"{_ago(state.age_s)}: continue with resume=auto"
        )
    elif verdict == states.SILENT:
        inside = "" if state.host != platform.node() else ", in another PID namespace"
        shown.append(
            f"the process is on {state.host}{inside}, not visible from here, and wrote nothing for "
            f"{state.age_s:.0f} s: check there; if it is gone, continue with resume=auto"
        )
    elif verdict in (*states.OVER, states.STALLED) and state.exit_code is not None:
        shown.append(f"the process ended with exit code {state.exit_code}")
    if verdict in (states.RUNNING, states.STALLED, states.ENDING) and state.exit_code is None:
        silent_s = state.progress_s + state.age_s
        shown.append(f"last progress {_ago(silent_s)}: {state.progress}")
        if state.age_s > _LATE_S:
            shown.append(f"the process wrote nothing for {state.age_s:.0f} s: is it suspended?")
        if state.loop_s > _LATE_S:
            shown.append(f"the event loop did not respond for {state.loop_s:.0f} s: code blocks it")
    if state.recoveries:
        shown.append(f"episodes were restarted {state.recoveries} time(s)")
    if state.message:
        shown.append(state.message)
    return shown


def table(state: RunState, most: int) -> Table:
    """The running activities, the longest wait first."""
    made = Table("lane", "what", "state", "seconds", box=None, pad_edge=False)
    made.columns[3].justify = "right"
    for wait in state.waits[:most]:
        seconds = wait["seconds"] + (state.age_s if state.alive else 0.0)
        made.add_row(wait["lane"], Text(wait["name"]), wait["state"], f"{seconds:.1f}")
    for name, does in state.component_status.items():
        made.add_row("policy", Text(name), Text(does), "")
    left = state.num_waits - min(most, len(state.waits))
    if left > 0:
        made.add_row("", f"and {left} more", "", "")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.status", StatusConfig, {}, _run, argv)


def _run(config: StatusConfig) -> int:
    folder = Path(config.run).expanduser()
    console = Console(highlight=False)
    state = read_state(folder)
    if not config.follow:
        write_stdout(_text(_shown(state, config.most), console))
        return EXIT_CODES[state.verdict]
    with Live(_shown(state, config.most), console=console, auto_refresh=False) as live:
        while state.verdict in (states.RUNNING, states.ENDING, states.STALLED) and state.alive:
            time.sleep(config.every_s)
            state = read_state(folder)
            live.update(_shown(state, config.most), refresh=True)
    return EXIT_CODES[state.verdict]


def _shown(state: RunState, most: int) -> Group:
    head = [Text(line) for line in lines(state)]
    over = state.verdict in states.OVER
    return Group(*head) if over else Group(*head, table(state, most))


def _text(shown: Group, console: Console) -> str:
    """The text that ``console`` would print for ``shown``."""
    terminal, page = console.is_terminal, io.StringIO()
    paper = Console(file=page, width=console.width, force_terminal=terminal, highlight=False)
    paper.print(shown, soft_wrap=not terminal)
    return page.getvalue()


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago"


if __name__ == "__main__":
    sys.exit(main())

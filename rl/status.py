"""``python -m rl.status runs/search``: how a run is, while it goes on or afterwards.

It reads what the run writes down every two seconds, and looks whether its process is there.
``follow=true`` goes on until the run is over. The exit code says how it is: 0 it did all its steps,
or those for which max_seconds left time, 10 it goes on, 11 nothing gets further in it, 12 its
process is gone without a word, 13 somebody stopped it, 14 it failed, 15 it cannot be seen from here
and wrote nothing for a minute.
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

from rl.command import run_command
from rl.run import state as states
from rl.run.files import put
from rl.run.state import RunState, read_state
from rl.settings.python import from_python

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
"""A run that lives and wrote nothing for so long is stopped, or cannot write."""


@from_python
@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Say how a run is."""

    run: str
    """The run's folder; the word alone will do, without run=."""
    follow: bool = False
    """Go on until the run is over."""
    every_s: float = 2.0
    """Seconds between two looks."""
    most: int = 20
    """Of so many things under way is told, those that wait longest."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        if not 0 < self.every_s < 3600:
            raise ValueError(f"every_s ({self.every_s}) must be above 0 and below 3600")
        if self.most < 0:
            raise ValueError(f"most ({self.most}) must be >= 0")


def lines(state: RunState) -> list[str]:
    """How a run is, in a few lines."""
    verdict = state.verdict
    told = [f"{verdict}  step {state.step}/{state.steps}  process {state.pid} on {state.host}"]
    if verdict == states.DEAD:
        told.append(
            f"the process is gone and did not say why; it wrote last {_ago(state.age_s)}: go on "
            f"with resume=auto"
        )
    elif verdict == states.SILENT:
        inside = "" if state.host != platform.node() else ", in another PID namespace"
        told.append(
            f"it is on {state.host}{inside}, which cannot be seen from here, and wrote nothing for "
            f"{state.age_s:.0f} s: look there; where it is gone, go on with resume=auto"
        )
    elif verdict in (*states.OVER, states.STALLED) and state.exit_code is not None:
        told.append(f"the process ended with exit code {state.exit_code}")
    if verdict in (states.RUNNING, states.STALLED, states.ENDING) and state.exit_code is None:
        silent_s = state.progress_s + state.age_s
        told.append(f"something got further {_ago(silent_s)}: {state.progress}")
        if state.age_s > _LATE_S:
            told.append(f"the process wrote nothing for {state.age_s:.0f} s: is it stopped?")
        if state.loop_s > _LATE_S:
            told.append(f"the event loop did not answer for {state.loop_s:.0f} s: code holds it")
    if state.recoveries:
        told.append(f"episodes were begun again {state.recoveries} time(s)")
    if state.told:
        told.append(state.told)
    return told


def table(state: RunState, most: int) -> Table:
    """What is under way, the longest wait first."""
    made = Table("lane", "what", "state", "seconds", box=None, pad_edge=False)
    made.columns[3].justify = "right"
    for wait in state.waits[:most]:
        seconds = wait["seconds"] + (state.age_s if state.alive else 0.0)
        made.add_row(wait["lane"], Text(wait["name"]), wait["state"], f"{seconds:.1f}")
    for name, does in state.parts.items():
        made.add_row("policy", Text(name), Text(does), "")
    left = state.num_waits - min(most, len(state.waits))
    if left > 0:
        made.add_row("", f"and {left} more", "", "")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.status", StatusConfig, {}, _run, argv)


def _run(config: StatusConfig) -> int:
    folder = Path(config.run).expanduser()
    console = Console(highlight=False)
    state = read_state(folder)
    if not config.follow:
        put(sys.stdout, _text(_shown(state, config.most), console))
        return EXIT_CODES[state.verdict]
    with Live(_shown(state, config.most), console=console, auto_refresh=False) as live:
        while state.verdict in (states.RUNNING, states.ENDING, states.STALLED) and state.alive:
            time.sleep(config.every_s)
            state = read_state(folder)
            live.update(_shown(state, config.most), refresh=True)
    return EXIT_CODES[state.verdict]


def _shown(state: RunState, most: int) -> Group:
    told = [Text(line) for line in lines(state)]
    over = state.verdict in states.OVER
    return Group(*told) if over else Group(*told, table(state, most))


def _text(shown: Group, console: Console) -> str:
    """As ``console`` would print it."""
    terminal, page = console.is_terminal, io.StringIO()
    paper = Console(file=page, width=console.width, force_terminal=terminal, highlight=False)
    paper.print(shown, soft_wrap=not terminal)
    return page.getvalue()


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago"


if __name__ == "__main__":
    sys.exit(main())

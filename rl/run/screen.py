"""The display of a running command: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from rl.errors import RunFailure
from rl.files import writing
from rl.run.metrics.no_gradient import REASONS, cause_in, no_gradient_of
from rl.tracking.sink import RunInfo, Sink, SinkOptions

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_EVERY_S = 10.0
"""Seconds between two lines about a progress bar, if the output is not a terminal."""
_LONGEST_PAUSE = 16
"""Lines about a bar that does not move become rarer, up to this multiple of their interval."""
WARN_AT = (3, 10, 30, 100, 300, 1000)
"""Numbers of consecutive steps without a gradient at which the screen shows what to try."""


class Screen:
    """Shows lines, which stay on the screen, and a progress bar for each count.

    Args:
        stream: the output, stderr by default. On a terminal, bars are live. Elsewhere, a line shows
            the count every few seconds, and more rarely while nothing is counted.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._live: Live | None = None
        self._bars: dict[str, tuple[int, int]] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        """Time and number of each bar's first count."""
        self._counted_at = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._waits: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.start()
        else:
            self._waits = threading.Thread(
                target=self._show_waits, name="turnwise-screen", daemon=True
            )
            self._waits.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._bars.clear()
            self._begun.clear()
        if self._live is not None:
            self._live.update(self._shown())
            self._live.stop()
        if self._waits is not None:
            self._over.set()
            self._waits.join(PLAIN_EVERY_S)

    def report(self, text: str) -> None:
        """Print a line, which stays on the screen.

        Raises:
            RunFailure: the line cannot be written, for example to a file on a full disk.
        """
        with writing(Path("stderr")):
            self._console.print(text, markup=False, soft_wrap=True)

    def count(self, what: str, done: int, total: int) -> None:
        """Show ``done`` of ``total`` as a progress bar. The bar disappears when all are done."""
        with self._lock:
            begun = what not in self._bars
            self._bars[what] = (done, total)
            self._begun.setdefault(what, (time.monotonic(), done))
            if done >= total:
                del self._bars[what], self._begun[what]
        if self._live is not None:
            self._live.update(self._shown(), refresh=begun)
        elif begun:
            self._counted_at = time.monotonic()
        elif time.monotonic() - self._counted_at >= PLAIN_EVERY_S:
            self._counted_at = time.monotonic()
            self.report(f"{what} {done}/{total}{self._left(what, done, total)}")

    def _left(self, what: str, done: int, total: int) -> str:
        """The estimated seconds until all are done, in words. Empty before anything was counted."""
        begun_at, before = self._begun.get(what, (0.0, done))
        if done <= before:
            return ""
        left_s = (time.monotonic() - begun_at) * (total - done) / (done - before)
        return (
            f", about {left_s:.0f} s left"
            if left_s < 120
            else f", about {left_s / 60:.0f} min left"
        )

    def _show_waits(self) -> None:
        """Show counts that do not change: the first episode of a slow model can take minutes."""
        shown: dict[str, tuple[int, int]] = {}
        pause_s = PLAIN_EVERY_S
        while not self._over.wait(PLAIN_EVERY_S / 10):
            with self._lock:
                bars = dict(self._bars)
            if bars != shown:
                shown, pause_s = bars, PLAIN_EVERY_S
            if not bars or time.monotonic() - self._counted_at < pause_s:
                continue
            self._counted_at = time.monotonic()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE * PLAIN_EVERY_S)
            # If the output is broken, the command's next line ends the command.
            with suppress(RunFailure):
                for what, (done, total) in bars.items():
                    self.report(f"{what} {done}/{total}{self._left(what, done, total)}")

    def _shown(self) -> Group:
        """The live area below the lines, on a terminal. Its content is replaced at each update."""
        bars = Table.grid(padding=(0, 2))
        for what, (done, total) in self._bars.items():
            bars.add_row(
                what,
                ProgressBar(total=total, completed=done, width=40),
                f"{done}/{total}{self._left(what, done, total)}",
            )
        return Group(*[bars] * bool(self._bars))


class Display(Screen):
    """Shows a run's progress.

    Args:
        title: name of the run.
        num_steps: number of steps of the whole run.
        stream: the output; a terminal shows a live table, anything else gets a line per step.
    """

    def __init__(self, title: str, num_steps: int, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._title = title
        self._num_steps = num_steps
        self._started = time.monotonic()
        self._rewards: list[float] = []
        self._causes: list[str | None] = []
        self._last_eval = ""
        self._table = Table.grid()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step."""
        self._rewards.append(metrics.get("reward", 0.0))
        self._causes.append(cause_in(metrics))
        if "eval/success" in metrics:
            self._last_eval = f"{metrics['eval/success']:.3f} at step {step}"
        if self._live is not None:
            self._table = self._made_table(step, metrics)
            self._live.update(self._shown())
        else:
            self.report(self._line(step, metrics))
        no_gradient = no_gradient_of(self._causes)
        if no_gradient.last in WARN_AT:
            self.report(f"warning: {no_gradient}")

    def _shown(self) -> Group:
        return Group(self._table, super()._shown())

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        parts = [
            f"step {step}/{self._num_steps}",
            f"reward {_reward(metrics)}",
            f"{metrics.get('tokens_per_second', 0.0):.0f} tok/s",
            f"{metrics.get('step_time', 0.0):.2f} s ({_seconds(metrics)})",
        ]
        if "eval/success" in metrics:
            parts.insert(2, f"validation {metrics['eval/success']:.3f}")
        if (cause := self._causes[-1]) is not None:
            parts.append(f"no gradient: {REASONS[cause]}")
        if failed := failures(metrics):
            parts.append(failed)
        return "  ".join(parts)

    def _made_table(self, step: int, metrics: Mapping[str, float]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.title = self._title
        table.title_justify = "left"
        elapsed = time.monotonic() - self._started
        table.add_row("step", f"{step}/{self._num_steps}  {elapsed:.0f} s")
        table.add_row("", ProgressBar(total=self._num_steps, completed=step, width=40))
        table.add_row("reward", f"{_reward(metrics)}  {sparkline(self._rewards, 40)}")
        if (cause := self._causes[-1]) is not None:
            last = no_gradient_of(self._causes).last
            table.add_row("gradient", f"none in the last {last} step(s): {REASONS[cause]}")
        table.add_row("validation", self._last_eval or "not yet")
        rate = metrics.get("tokens_per_second", 0.0)
        table.add_row("speed", f"{rate:.0f} sampled tokens/s")
        table.add_row("seconds", _seconds(metrics))
        if failed := failures(metrics):
            table.add_row("failures", failed.removeprefix("failures "))
        if "entropy" in metrics:
            table.add_row("entropy", f"{metrics['entropy']:.3f}")
        return table


def failures(metrics: Mapping[str, float]) -> str:
    """Numbers of failed episodes by kind, and of restarted episodes. Empty if there are none."""
    failed, again = metrics.get("failures", 0.0), metrics.get("retries", 0.0)
    kinds = [
        (k.removeprefix("failures/"), v) for k, v in metrics.items() if k.startswith("failures/")
    ]
    parts = [f"failures {failed:.0f} ({', '.join(f'{n} {v:.0f}' for n, v in kinds)})"] * bool(
        failed
    )
    parts += [f"restarted {again:.0f}"] * bool(again)
    return "  ".join(parts)


def sparkline(values: list[float], width: int) -> str:
    """The last ``width`` values as blocks of eight heights, scaled to their range."""
    shown = values[-width:]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BLOCKS[int((v - low) / span * (len(BLOCKS) - 1))] for v in shown)


def _reward(metrics: Mapping[str, float]) -> str:
    """The mean reward and, if it was recorded, the 95% interval of the mean over tasks."""
    shown = f"{metrics.get('reward', 0.0):.3f}"
    if "reward_low" not in metrics:
        return shown
    return f"{shown} [{metrics['reward_low']:.3f}, {metrics['reward_high']:.3f}]"


def _seconds(metrics: Mapping[str, float]) -> str:
    parts = [
        (key.removeprefix("time/learner/"), seconds)
        for key, seconds in metrics.items()
        if key.startswith("time/learner/") and seconds >= 0.005
    ]
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts)


class OnScreen(Sink):
    """Shows the steps of a run. The run calls it directly.

    Args:
        display: the screen.
    """

    def __init__(self, display: Display) -> None:
        super().__init__(SinkOptions())
        self._display = display

    def open(self, run: RunInfo, id: str) -> str:
        """Do nothing, because the display is already open."""
        return ""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a step. Evaluations between steps are reported as lines."""
        if "step_time" in metrics:
            self._display.step(step, metrics)

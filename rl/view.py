"""``python -m rl.view runs``: runs and their episodes in a web browser, or in the terminal.

The command serves a web page on this machine until Ctrl-C. ``text=true`` prints instead, and
``export=FILE.html`` writes one self-contained page.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.files import write_stdout
from rl.run.process.command import report, run_command
from rl.settings.parsing.from_python import from_python

if TYPE_CHECKING:
    from rl.viewer.runs import Runs


@from_python
@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Show runs and their episodes in a web browser."""

    run: str = "runs"
    """A run's folder, or a folder of runs. "run=" may be omitted."""
    port: int = 8765
    """Port of the web page; 0 for a free one."""
    host: str = "127.0.0.1"
    """Address of the web page. With another than 127.0.0.1, other machines can read the runs."""
    text: bool = False
    """Print to the terminal instead: the runs, a run's newest episodes, or one episode."""
    episode: str = ""
    """With text=true, the episode to print, such as step-000012/3."""
    export: str = ""
    """Write the run to this HTML file instead, which needs no server and no network."""
    episodes: int = 60
    """Number of episodes in the exported file, as whole groups, evenly over the run."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port ({self.port}) must be from 0 to 65535")
        if not self.host.strip():
            raise ValueError("host is empty: give an address such as 127.0.0.1")
        if self.episodes < 1:
            raise ValueError(f"episodes ({self.episodes}) must be >= 1")
        if self.episode and not self.text:
            raise ValueError(f"episode ({self.episode}) needs text=true; the page has links")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.view", ViewConfig, {}, _run, argv)


def _run(config: ViewConfig) -> int:
    # These load aiohttp; `--help` and a mistyped key do not wait for it.
    from rl.viewer.runs import Runs
    from rl.viewer.server import serve
    from rl.viewer.text import printable

    runs = Runs(Path(config.run).expanduser())
    try:
        if config.text:
            write_stdout(_text(runs, config.episode))
        elif config.export:
            _export(runs, Path(config.export).expanduser(), config.episodes)
        else:
            serving = serve(runs, config.host, config.port, partial(_announce, runs))
            asyncio.run(serving)
    except UsageError as error:
        # Names of folders and files are data as well.
        raise UsageError(printable(str(error))) from error
    finally:
        runs.close()
    return 0


def _announce(runs: Runs, address: str) -> None:
    report(f"the runs in {runs.root} are at {address} (Ctrl-C ends)")


def _text(runs: Runs, episode: str) -> str:
    from rl.viewer.text import episode_text, overview_text, runs_text

    if not runs.single and not episode:
        return runs_text(runs)
    name = runs.only()
    return episode_text(runs, name, episode) if episode else overview_text(runs, name)


def _export(runs: Runs, path: Path, most: int) -> None:
    from rl.viewer.export import write_export

    count = write_export(runs, runs.only(), path, most)
    report(f"{count} episodes and all curves are in {path}")


if __name__ == "__main__":
    sys.exit(main())

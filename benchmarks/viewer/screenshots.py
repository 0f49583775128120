"""Pictures of each view of the viewer, and an exported run, for the docs.

    python -m benchmarks.viewer.screenshots [runs/pictures] [docs/viewer]

The command trains the runs of :data:`RUNS` in the first folder, except those that are already
there, and writes a PNG for each view of ``search`` to the second; ``problems.png`` is the first
page of ``search-cut``, and ``example.html`` is ``search`` as one file. It fails if a view lacks its
content. It needs Chromium.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from benchmarks.viewer.broken_runs import train
from benchmarks.viewer.browser import Browser, find_chromium, open_browser
from rl.viewer.export import write_export
from rl.viewer.runs import Runs
from rl.viewer.server import application

RUNS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "search": ("healthy", {}),
    "search-faster": ("healthy", {"optimizer.lr": 3e-3}),
    "search-cut": ("cut answers", {"sampling.max_tokens": 12}),
}
"""The fault of each run, and the settings in which it differs from the others."""
SETTINGS: Mapping[str, Any] = {
    "env": "search-qa",
    "steps": 8,
    "prompts": 8,
    "group_size": 8,
    "sampling.max_tokens": 96,
    "optimizer.lr": 1e-3,
    "eval.every": 4,
    "eval.tasks": 32,
    "eval.test_tasks": 48,
    "save_every": 8,
}
"""Settings of all runs. They begin with the cached model of ``model=tiny``."""
WIDTH, HEIGHT = 1120, 700
EXPORTED = 16
"""Number of episodes in the exported run."""
_SHOWN_S = 60.0
CONTENT: Mapping[str, str] = {
    "runs": "table.runs tbody tr",
    "overview": "section.curves svg path",
    "problems": "ul.problems li strong",
    "episodes": ".rows a.row",
    "episode": "details.tool",
    "tokens": ".tokens .t.p5, .tokens .t.n5",
    "group": ".side > :nth-child(2)",
    "timeline": ".lane svg rect.bar",
    "compare": ".both .side, .both > *",
}
"""What each view must show before its picture is taken, as a selector of elements."""


def views(run: str, other: str, row: str) -> dict[str, str]:
    """Links of the views by the names of their pictures."""
    return {
        "runs": "#/",
        "overview": f"#/run/{run}",
        "problems": f"#/run/{other}",
        "episodes": f"#/run/{run}/episodes",
        "episode": f"#/run/{run}/episode/{row}",
        "tokens": f"#/run/{run}/episode/{row}?show=tokens&colour=advantage",
        "group": f"#/run/{run}/episode/{row}?show=group",
        "timeline": f"#/run/{run}/timeline",
        "compare": f"#/run/{run}/compare/{other}",
    }


def make_runs(folder: Path, settings: Mapping[str, Any]) -> None:
    """Train the runs that the folder lacks; ``settings`` are those of all runs."""
    for name, (fault, changes) in RUNS.items():
        if not (folder / name / "result.json").exists():
            train(fault, folder / name, settings, changes)


async def _picture(browser: Browser, link: str, view: str, path: Path) -> None:
    await browser.go("about:blank")
    await browser.go(link)
    try:
        await browser.until(
            f"document.querySelector({f'#main {CONTENT[view]}'!r}) !== null", _SHOWN_S
        )
    except TimeoutError:
        shown = await browser.evaluate("document.getElementById('main')?.innerText.slice(0, 300)")
        raise SystemExit(f"{link} shows no element {CONTENT[view]}, but: {shown}") from None
    # Charts are drawn in the frame after the page.
    await asyncio.sleep(0.5)
    await browser.screenshot(path)


async def write(runs: Runs, run: str, other: str, folder: Path) -> None:
    """Write all pictures: in light colours, one in dark colours, and one as on a telephone."""
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no chromium on this machine: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    index = runs.run(run).index
    index.update(600.0)
    rows = [row for row in index.all_rows() if row.kind == "train"]
    # An episode with calls whose group has different rewards, of a late step.
    rows.sort(key=lambda row: (abs(row.advantage or 0.0) > 0.1, row.calls > 0, row.step))
    links = views(run, other, f"{rows[-1].file}/{rows[-1].line}")
    served = TestServer(application(runs, "127.0.0.1"))
    async with served as server, open_browser(chromium) as browser:
        home = f"http://127.0.0.1:{server.port}/"
        await browser.size(WIDTH, HEIGHT)
        for name, link in links.items():
            await _picture(browser, home + link, name, folder / f"{name}.png")
        await browser.dark(True)
        await _picture(browser, home + links["overview"], "overview", folder / "dark.png")
        await browser.dark(False)
        await browser.size(390, HEIGHT)
        await _picture(browser, home + links["episode"], "episode", folder / "telephone.png")
        if browser.problems:
            raise SystemExit("\n".join(browser.problems))


def main() -> None:
    words = sys.argv[1:]
    if len(words) > 2 or any(word.startswith("-") for word in words):
        raise SystemExit(__doc__)
    root = Path(words[0] if words else "runs/pictures")
    folder = Path(words[1] if len(words) > 1 else "docs/viewer")
    make_runs(root, SETTINGS)
    runs = Runs(root)
    try:
        asyncio.run(write(runs, "search", "search-cut", folder))
        write_export(runs, "search", folder / "example.html", EXPORTED)
    finally:
        runs.close()


if __name__ == "__main__":
    main()

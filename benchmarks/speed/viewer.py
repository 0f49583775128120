"""Seconds until the viewer shows, filters and searches a run with many episodes.

    python -m benchmarks.speed.viewer [episodes] [results.json]

The benchmark writes a run of 100,000 made-up episodes, 500 in a file, with texts of about 1.5 kB.
``first_index`` is the time to read all files once; the page shows the newest episodes meanwhile.
The other figures are of a viewer that starts with this index, as every later one does: ``open`` is
the run's page and the first rows of the list, ``open_in_browser`` the same until Chromium shows the
rows, and ``scroll_frame`` the longest time between two frames while the list scrolls from end to
end. Prints one line of JSON, and writes it to the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp.test_utils import TestServer

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from benchmarks.viewer.browser import find_chromium, open_browser
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import write_trajectories
from rl.run.folder import versions
from rl.viewer.api import ANSWERS
from rl.viewer.runs import Runs
from rl.viewer.server import application

FILE, GROUP, WORDS = 500, 10, 120
NEEDLE = "a-needle-in-the-hay"


def write_run(folder: Path, count: int) -> None:
    """Write a run of ``count`` episodes."""
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(5000)]
    said = [" ".join(rng.choice(words, WORDS)) for _ in range(2000)]
    segment = Segment()
    segment.append_context(list(range(16)), 0)
    completion = Completion([1] * 16, [-0.5] * 16, [0] * 16, FinishReason.STOP_TOKEN)
    segment.append_completion(completion, 0)
    (folder / "trajectories").mkdir(parents=True)
    records = []
    for step in range(1, -(-count // FILE) + 1):
        episodes = []
        for number in range(min(FILE, count - (step - 1) * FILE)):
            texts = [said[pick] for pick in rng.integers(0, len(said), 2)]
            if step == 3 and number == 7:
                texts[1] += NEEDLE
            turn = Turn(texts[1], "", "stop_token", 16, {"right": float(rng.random() < 0.3)})
            task, member = step * FILE + number // GROUP, number % GROUP
            episodes.append(
                Trajectory(
                    "search-qa-v0",
                    {},
                    task,
                    1,
                    member,
                    [segment],
                    [turn],
                    True,
                    observation=texts[0],
                )
            )
        groups = [TrajectoryGroup(episodes[i : i + GROUP]) for i in range(0, len(episodes), GROUP)]
        write_trajectories(folder / "trajectories" / f"step-{step:06d}.jsonl.gz", groups)
        records.append({"step": step, "num_groups": FILE / GROUP, "reward": 0.3 + step * 1e-3})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)


def seconds(work: Callable[[], Any]) -> float:
    """Seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(folder: Path) -> dict[str, float]:
    """Seconds of the answers for the run in ``folder``."""
    runs = Runs(folder)
    name = runs.only()
    figures = {"first_index": seconds(lambda: runs.run(name).index.update(3600.0))}
    runs.close()
    runs = Runs(folder)

    def ask(question: str, **parameters: str) -> dict[str, Any]:
        return ANSWERS[question](runs, {"run": name} | parameters)

    figures["open"] = seconds(lambda: (ask("runs"), ask("run"), ask("episodes")))
    figures["filter"] = seconds(lambda: ask("episodes", low="1", step="50-150"))
    figures["sort"] = seconds(lambda: ask("episodes", sort="reward"))
    figures["search"] = seconds(lambda: ask("episodes", text=NEEDLE))
    assert ask("episodes", text=NEEDLE)["total"] == 1
    figures["last_rows"] = seconds(lambda: ask("episodes", offset="99000"))
    figures["episode"] = seconds(lambda: ask("tokens", file="step-000001", line="7"))
    runs.close()
    return figures


SCROLL = """(async () => {
  const frame = document.querySelector(".frame"), end = frame.scrollHeight, frames = [];
  let before = performance.now();
  for (let i = 0; i <= 120; i++) {
    frame.scrollTop = end * i / 120;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - before);
    before = now;
  }
  return frames.sort((a, b) => a - b);
})()"""


async def measure_in_browser(folder: Path, chromium: str) -> dict[str, float]:
    """Seconds in Chromium until the list is shown, and of the frames while it scrolls."""
    runs = Runs(folder)
    served = TestServer(application(runs, "127.0.0.1"))
    async with served as server, open_browser(chromium) as browser:
        await browser.size(1280, 900)
        start = time.perf_counter()
        await browser.go(f"http://127.0.0.1:{server.port}/#/run/{runs.only()}/episodes")
        await browser.until("document.querySelectorAll('.rows a.row').length > 10")
        opened = time.perf_counter() - start
        frames = await browser.evaluate(SCROLL)
    runs.close()
    return {
        "open_in_browser": opened,
        "scroll_frame": frames[-1] / 1000,
        "scroll_frame_median": frames[len(frames) // 2] / 1000,
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as home:
        os.environ["TURNWISE_CACHE"] = str(Path(home) / "cache")
        folder = Path(home) / "many"
        write_run(folder, count)
        figures = measure(folder)
        chromium = find_chromium()
        if chromium is not None:
            figures |= asyncio.run(measure_in_browser(folder, chromium))
    result = {
        "episodes": count,
        "seconds": {name: round(value, 3) for name, value in figures.items()},
        "cores": os.cpu_count(),
        "versions": versions(),
    }
    print(json.dumps(result))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

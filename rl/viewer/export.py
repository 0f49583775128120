"""A run as one HTML file that works without a server: the viewer's page with its answers inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.files import replace_text
from rl.run.process.command import report
from rl.viewer.api import as_json, list_runs, show_curves, show_episode, show_run, show_tokens
from rl.viewer.curves import MAIN
from rl.viewer.episodes.index import Query
from rl.viewer.episodes.rows import Row
from rl.viewer.runs import Run, Runs
from rl.viewer.server import PAGE

_INDEXING_S = 600.0
_SCRIPT = re.compile(r'<script src="/page/([a-z]+\.js)" defer></script>\n?')
_STYLE = '<link rel="stylesheet" href="/page/viewer.css">'
_HEAD = '<meta charset="utf-8">'


def write_export(runs: Runs, name: str, path: Path, most: int) -> int:
    """Write a run's page to a file.

    Args:
        runs: the runs.
        name: the run's name.
        path: the HTML file.
        most: number of episodes at which the page takes no further group.

    Returns:
        The number of episodes in the page.

    Raises:
        RunFailure: the file cannot be written.
        UsageError: an episode cannot be read.
    """
    run = runs.run(name)
    run.index.update(_INDEXING_S)
    run.problems(_INDEXING_S)
    rows = _chosen(run, most)
    if len(rows) > most:
        report(f"episodes={most} ends within a group: the whole group makes {len(rows)}")
    replace_text(path, page(as_json(_answers(runs, run, rows))))
    return len(rows)


def page(data: str) -> str:
    """The page with ``data``, which is JSON, and a policy that allows only its own parts."""
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    style = (PAGE / "viewer.css").read_text(encoding="utf-8")
    scripts = [(PAGE / name).read_text(encoding="utf-8") for name in _SCRIPT.findall(html)]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src "
        f"{_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    # In JSON these characters stand only within strings. Without them no end tag can occur.
    safe = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    inside = [f'<script type="application/json" id="data">{safe}</script>']
    inside += [f"<script>{script}</script>" for script in scripts]
    html = _SCRIPT.sub("", html).replace(_STYLE, f"<style>{style}</style>")
    html = html.replace(
        _HEAD, f'{_HEAD}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    )
    return html.replace("</body>", "\n".join(inside) + "\n</body>")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _chosen(run: Run, most: int) -> list[Row]:
    """Whole groups, evenly over the run, until there are ``most`` episodes or more."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in run.index.all_rows():
        groups.setdefault((row.file, row.grp), []).append(row)
    keys = list(groups)
    if not keys:
        return []
    chosen: list[Row] = []
    count = 0
    # Groups differ in size: an evaluation has groups of one.
    while len(chosen) < most and count < len(keys):
        count += 1
        spread = [keys[round(i * (len(keys) - 1) / max(1, count - 1))] for i in range(count)]
        chosen = [row for key in dict.fromkeys(spread) for row in groups[key]]
    return chosen


def _answers(runs: Runs, run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    """What the page asks for, by question; ``view.exported`` in the page reads it."""
    named = {"run": run.name}
    shown = show_run(runs, named)
    counts = {
        name: Counter(value for row in rows if (value := getattr(row, name)))
        for name in ("kind", "env", "ending", "failure")
    }
    total = len(run.index.find(Query()))
    every = [summary for summary in list_runs(runs, {})["runs"] if summary["name"] == run.name]
    episodes = {}
    for row in rows:
        place = named | {"file": row.file, "line": str(row.line)}
        episodes[f"{row.file}/{row.line}"] = {
            "episode": show_episode(runs, place),
            "tokens": show_tokens(runs, place),
        }
    return {
        "runs": {"root": "", "single": True, "runs": every},
        "run": shown | {"counts": counts, "of_episodes": total},
        "main": list(MAIN),
        "curves": show_curves(runs, named | {"names": "*"}),
        "rows": [row._asdict() for row in rows],
        "episodes": episodes,
    }

"""A probe of plug-ins: the entry points of installed packages, and whether they import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

from rl.reports.probes import Facts

PREFIX = "turnwise."
"""Start of the names of turnwise's entry-point groups."""
_LOAD = """
import json, os, sys
from importlib import metadata
out = os.fdopen(os.dup(1), "w", 1)
os.dup2(2, 1)
for group, name, value in json.loads(sys.argv[1]):
    print(json.dumps("start"), file=out)
    try:
        metadata.EntryPoint(name, value, group).load()
        error = ""
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps(error), file=out)
"""
"""A program that imports entry points, one after the other, and writes two lines for each."""


def plugins(deadline_s: float) -> Facts:
    """The plug-ins of installed packages. Each is imported, in another process.

    If a plug-in hangs or ends the process, the plug-ins after it are listed without a result.
    """
    points = [
        point
        for group in sorted(metadata.entry_points().groups)
        if group.startswith(PREFIX)
        for point in metadata.entry_points(group=group)
    ]
    if not points:
        return Facts({"installed": "none"})
    words = json.dumps([(point.group, point.name, point.value) for point in points])
    results = _load(words, deadline_s)
    facts = Facts()
    for point, result in zip(points, results + [None] * len(points), strict=False):
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown package"
        name = f"{point.group.removeprefix(PREFIX)}/{point.name}"
        outcome = {"": "imports", None: "not tried"}.get(result, "fails")
        facts.values[name] = f"{owner}, {point.value}: {outcome}"
        if result:
            facts.problems.append(f"{name} of {owner} cannot be imported: {result}")
    return facts


def _load(words: str, deadline_s: float) -> list[str]:
    """For each entry point that was tried: "" or the error of its import."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=deadline_s,
            check=False,
        )
        output, ending = done.stdout, f"the import ended the process with {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        output, ending = expired.stdout or b"", f"no end of the import within {deadline_s:g} s"
    lines = [json.loads(line) for line in output.decode(errors="replace").splitlines()]
    unfinished = [ending] if len(lines) % 2 else []
    return [*lines[1::2], *unfinished]

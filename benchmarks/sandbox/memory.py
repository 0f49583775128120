"""Maximum of each kind of memory that a run can hold, and the time until a run over its limit ends.

    python -m benchmarks.sandbox.memory --backend bwrap            # requires root
    python -m benchmarks.sandbox.memory --backend landlock --user 54321 --python /usr/bin/python3

Each kind has its own sandbox in its own control group (memory, version 1), whose peak is the
figure. The peak includes the kernel's memory and memory that no process shows. For ``docker`` the
group is that of the container. Prints the figures; ``--save`` stores them for the table of the
threat model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sandbox.memory_kinds import KINDS, Kind
from tools.sandbox import Limits, make_sandbox

MEMORY_MB, DISK_MB = 256, 64
_GROUPS = Path("/sys/fs/cgroup/memory")
_REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parents[1] / "results/sandbox_memory.json"


def measure(kind: Kind, options: argparse.Namespace, folder: str) -> dict[str, object]:
    """The figures of one kind."""
    with _group() as group:
        before = set(_containers())
        if options.user is not None:
            os.chown(group / "tasks", options.user, options.user)  # it enters by itself
        command = [options.python or sys.executable, "-m", "benchmarks.sandbox.memory", "--inner"]
        command += [kind.name, "--backend", options.backend]
        command += ["--python", options.python] if options.python else []
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=options.user,
            group=options.user,
            extra_groups=None if options.user is None else [],
            preexec_fn=lambda: (group / "tasks").write_text("0"),
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{options.backend} does not start here")
            watched = next(iter(set(_containers()) - before), group)
            return _watched(kind, watched, process)


def _watched(kind: Kind, group: Path, process: subprocess.Popen[str]) -> dict[str, object]:
    limit = (DISK_MB if kind.of_disk else MEMORY_MB) << 20
    usage, peak = group / "memory.usage_in_bytes", group / "memory.max_usage_in_bytes"
    (group / "memory.force_empty").write_text("0") if group.name.startswith("turnwise") else None
    before = int(usage.read_text())
    peak.write_text("0")
    process.stdin.write("go\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    started, beyond = time.monotonic(), None
    while not select.select([process.stdout], [], [], 0.002)[0]:
        if beyond is None and int(usage.read_text()) - before > limit:
            beyond = time.monotonic()
    ended = time.monotonic()
    result = json.loads(process.stdout.readline())  # type: ignore[union-attr]
    return {
        "kind": kind.name,
        "held": kind.counted,
        "peak": round((int(peak.read_text()) - before) / limit, 2),
        "end_s": round(ended - beyond, 2) if beyond and result["detail"] else None,
        "took_s": round(ended - started, 2),
        **result,
    }


async def inner(name: str, backend: str, python: str | None) -> None:
    """Run one kind in a sandbox of this process, when a line arrives, and print how it ended."""
    kind = next(kind for kind in KINDS if kind.name == name)
    limits = Limits(wall_s=100.0, cpu_s=100.0, memory_mb=MEMORY_MB, disk_mb=DISK_MB)
    async with make_sandbox(backend, limits, python=python, workers=1) as sandbox:
        for _ in range(3):
            await sandbox.run("print(1)")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        result = await sandbox.run(kind.source)
        escaped = "ESCAPED" in result.stdout
        said = {"status": str(result.status), "escaped": escaped, "detail": result.detail}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _group() -> Iterator[Path]:
    group = _GROUPS / f"turnwise-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def _containers() -> list[Path]:
    return [path for path in (_GROUPS / "docker").glob("*") if path.is_dir()]


@contextlib.contextmanager
def _readable_copy(user: int | None) -> Iterator[str]:
    """The package where another user may read it."""
    if user is None:
        yield str(_REPOSITORY)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("tools", "benchmarks"):
            left_out = shutil.ignore_patterns("__pycache__", "results", "peers", "studies")
            shutil.copytree(_REPOSITORY / name, Path(folder, name), ignore=left_out)
        yield folder


def save(where: str, rows: list[dict[str, object]]) -> None:
    """Put the figures of one backend and identity beside those of the others."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found[where] = {row["kind"]: {k: row[k] for k in ("peak", "end_s", "status")} for row in rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def page_table() -> str:
    """The table of the threat model: peak as a part of the limit, seconds to the end beyond it."""
    found = json.loads(RESULTS.read_text())
    head = ["kind of memory", "how it is held", *(f"`{where}`" for where in found)]
    lines = [head, ["---"] * len(head)]
    for kind in KINDS:
        figures = [found[where][kind.name] for where in found]
        lines.append([kind.name, kind.counted, *(_shown(figure) for figure in figures)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(figure: dict[str, Any]) -> str:
    peak = f"{figure['peak']:.2f}"
    return peak if figure["end_s"] is None else f"{peak}, {figure['end_s']:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--python", default=None)
    parser.add_argument("--user", type=int, default=None)
    parser.add_argument("--only", default="", help="a part of the names of the kinds")
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of a kind, of which the median counts"
    )
    parser.add_argument("--save", action="store_true", help="add the figures to RESULTS")
    parser.add_argument("--inner", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        asyncio.run(inner(options.inner, options.backend, options.python))
        return 0
    rows = []
    with _readable_copy(options.user) as folder:
        for kind in KINDS:
            if options.only in kind.name:
                runs = [measure(kind, options, folder) for _ in range(options.runs)]
                row = sorted(runs, key=lambda row: (row["escaped"], row["peak"]))[len(runs) // 2]
                row["escaped"] = any(run["escaped"] for run in runs)
                rows.append(row)
                line = "{kind:<55} {peak:>5} {end_s!s:>5} {took_s:>6} {status} {detail}".format(
                    **row
                )
                print(line, f"(at most {max(run['peak'] for run in runs)})")
    if options.save:
        save(options.backend + (", user" if options.user else ""), rows)
    return 0 if all(not row["escaped"] and row["peak"] <= 1.25 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

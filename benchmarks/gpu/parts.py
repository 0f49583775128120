"""Runs the parts in processes of their own, and collects their figures."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.figures import Figure, Report, Setup, Warnings, one_line

PARTS = {
    "device": 60.0,
    "correctness": 90.0,
    "deterministic": 60.0,
    "stalls": 60.0,
    "full": 90.0,
    "lora": 120.0,
    "packing": 90.0,
    "head": 45.0,
    "offload": 60.0,
    "generation": 90.0,
    "vllm": 150.0,
    "job": 150.0,
}
"""The parts in their order, each a module of the same name with a function ``run``, and the seconds
after which a part is ended."""
MODULES = {
    "deterministic": "correctness",
    "full": "learner",
    "lora": "learner",
    "packing": "learner",
    "offload": "learner",
}
"""Modules of parts that share one. Each such module has a function for each of its parts."""
LAST_LINES = 400
"""Characters of a process's output that explain its end."""


@dataclass
class Part:
    """What is known of a part."""

    status: str = "not run"
    """"done", "failed" or "not run"."""
    seconds: float | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    """Warnings that were logged, for example about a slower path that the code took."""
    figures: list[Figure] = field(default_factory=list)


def run_here(names: Sequence[str], setup: Setup, file: Path) -> None:
    """Run parts in this process, one after the other, each behind a guard."""
    for name in names:
        report, heard, start = Report(name, file), Warnings(), time.monotonic()
        logging.getLogger().addHandler(heard)
        report.write("begin", True)
        error = ""
        try:
            module = import_module(f"benchmarks.gpu.{MODULES.get(name, name)}")
            function = getattr(module, name if name in MODULES else "run")
            function(setup, report)
        except Exception as failure:
            logging.getLogger(__name__).exception("part %s", name)
            error = one_line(failure)
        finally:
            logging.getLogger().removeHandler(heard)
        seconds = round(time.monotonic() - start, 2)
        report.write("end", {"seconds": seconds, "error": error, "warnings": heard.messages})


class Results:
    """The figures of all parts, in a file that is written after each of them."""

    def __init__(self, setup: Setup, path: Path) -> None:
        self.parts: dict[str, Part] = {}
        self._setup = setup
        self.path = path
        self._about: dict[str, Any] = {}

    def figures(self) -> list[Figure]:
        """All figures; a part that failed has one that says why."""
        found: list[Figure] = []
        for name, part in self.parts.items():
            found += part.figures
            if part.status != "done":
                found.append(Figure(name, part.status, failed=True, note=part.error))
        return found

    def summary(self) -> str:
        """Numbers of figures by their status."""
        all_of = [figure.status for figure in self.figures()]
        kinds = ("met", "missed", "measured", "skipped", "failed")
        return ", ".join(f"{all_of.count(kind)} {kind}" for kind in kinds)

    def is_good(self, with_goals: bool) -> bool:
        """Whether nothing failed and, with goals, none was missed."""
        bad = {"failed", "missed"} if with_goals else {"failed"}
        return not bad & {figure.status for figure in self.figures()}

    def add(self, name: str, lines: Sequence[dict[str, Any]], ended: str) -> None:
        """Add what a part wrote; ``ended`` says why its process ended early, or is empty."""
        mine = [line for line in lines if line["part"] == name]
        part = self.parts.setdefault(name, Part())
        part.figures = [Figure(**line["figure"]) for line in mine if "figure" in line]
        end = next((line["end"] for line in mine if "end" in line), None)
        if end is not None:
            part.seconds, part.error = end["seconds"], end["error"]
            part.warnings = end["warnings"]
            part.status = "failed" if part.error else "done"
        elif any("begin" in line for line in mine):
            part.status, part.error = "failed", ended
        else:
            part.error = ended
        about = [line["about"] for line in mine if "about" in line]
        self._about |= about[0] if about else {}

    def keep_output(self, log: Path) -> None:
        """Append the output of a process to a file beside the results."""
        if log.is_file():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_suffix(".log").open("ab") as kept:
                kept.write(log.read_bytes())

    def write(self) -> None:
        """Write the file. It is replaced at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def as_json(self) -> dict[str, Any]:
        """The content of the file."""
        parts = {}
        for name, part in self.parts.items():
            figures = [{**asdict(f), "status": f.status} for f in part.figures]
            parts[name] = {**asdict(part), "figures": figures}
        return {"small": self._setup.small, **self._about, "parts": parts}


def measure(names: Sequence[str], setup: Setup, results: Results, budget_s: float) -> None:
    """Run the parts, and write the results after each process."""
    end = time.monotonic() + budget_s
    results.path.with_suffix(".log").unlink(missing_ok=True)
    ordered = [name for name in PARTS if name in names]
    # The first part says what the machine is, and costs little.
    if "device" not in ordered:
        ordered.insert(0, "device")
    groups = [ordered] if setup.small and not setup.on_gpu else [[name] for name in ordered]
    for group in groups:
        deadline_s = min(sum(PARTS[name] for name in group), end - time.monotonic())
        lines, ended = _run_apart(group, setup, deadline_s)
        for name in group:
            results.add(name, lines, ended)
        if any(figure.failed for figure in results.figures() if figure.part in group):
            results.keep_output(_log(group, setup))
        results.write()


def _log(names: Sequence[str], setup: Setup) -> Path:
    """File with the output of the process that runs these parts."""
    return setup.work / f"{names[0]}.log"


def _run_apart(
    names: Sequence[str], setup: Setup, deadline_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Run parts in a new process; returns what they wrote, and why the process ended early."""
    if deadline_s <= 0:
        return [], "no time left for this part: give --parts or a larger --budget"
    file, log = setup.work / f"{names[0]}.jsonl", _log(names, setup)
    words = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--here",
        str(file),
        "--work",
        str(setup.work),
        "--device",
        setup.device,
        "--parts",
        *names,
    ]
    words += ["--small"] * setup.small + ["--allow-unsafe"] * setup.allow_unsafe
    print(f"{', '.join(names)}: at most {deadline_s:.0f} s", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Servers and workers of the part end with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ended = f"ended after {deadline_s:.0f} s" if code is None else f"exit code {code}"
    tail = " ".join(log.read_text(errors="replace").split())[-LAST_LINES:]
    return _lines(file), "" if code == 0 else f"{ended}: {tail}"


def _lines(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that a killed process may have left."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

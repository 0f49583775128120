"""``python -m rl.doctor``: facts about this machine and a run, for bug reports.

The report has versions, devices, memory, disks, the sandbox's backends, plug-ins and, with
``python -m rl.doctor runs/search``, the state of a run. It has no secrets: variables that look like
keys are left out, and the home folder is shown as ``~``. The exit code is 0 if nothing is broken,
and otherwise 1; the last lines of the report name what is broken.
"""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.errors import FAILED
from rl.files import write_stdout
from rl.reports import machine, software
from rl.reports.plugins import plugins
from rl.reports.probes import Facts, Probe, run_probes
from rl.reports.redaction import Redactor
from rl.run.process.command import run_command
from rl.settings.parsing.from_python import from_python

_WIDTH = 100
_NAME_WIDTH = 16


@from_python
@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Report versions, devices, sandbox, plug-ins and a run's state, for a bug report."""

    run: str = ""
    """A run's folder, to report its settings, status, last metrics and failures. "run=" may be
    omitted."""
    python: str = ""
    """The Python interpreter that has vLLM, as in policy.python. If empty, that of the run, if
    any."""
    json: bool = False
    """Print the report as JSON. "--json" does the same."""
    deadline_s: float = 15.0
    """Seconds that each probe may take. Probes run at the same time."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < 3600:
            raise ValueError(f"deadline_s ({self.deadline_s}) must be above 0 and below 3600")


def diagnose(config: DoctorConfig) -> dict[str, Facts]:
    """Run all probes, and return what each found, without secrets.

    Raises:
        UsageError: ``config.run`` is not a run's folder.
    """
    found = asyncio.run(run_probes(_probes(config), config.deadline_s))
    _compare_gpus(found)
    redactor = Redactor()
    return {
        name: Facts(redactor.plain(facts.values), [redactor.text(p) for p in facts.problems])
        for name, facts in found.items()
    }


def _probes(config: DoctorConfig) -> dict[str, Probe]:
    """The probes, by the name of their section."""
    from rl.reports.run_state import run_in

    probes: dict[str, Probe] = {
        "turnwise": software.turnwise,
        "torch": software.torch,
        "packages": software.packages,
        "machine": machine.system,
        "driver": machine.gpu_driver,
        "sandbox": machine.sandbox,
        "docker": machine.docker,
        "disks": machine.disks,
        "plugins": plugins,
        "environment": machine.environment,
    }
    python = config.python
    if config.run:
        folder = Path(config.run).expanduser()
        probes["run"] = run_in(folder)
        python = python or _python_of(folder)
    if python:
        probes["vllm"] = software.vllm_of(python)
    return probes


def _python_of(folder: Path) -> str:
    """The interpreter of a run's vLLM server, if it is not this interpreter."""
    from rl.reports.differences import read_recorded

    return read_recorded(folder).changed.get("policy.python", "")


def _compare_gpus(found: Mapping[str, Facts]) -> None:
    """Add a problem if the driver reports GPUs that torch does not see."""
    driver, torch = found["driver"].values.get("gpus"), found["torch"].values
    if isinstance(driver, list) and driver and isinstance(torch.get("gpus"), str):
        found["torch"].problems.append(
            f"torch {torch['version']} sees no GPU, the driver reports {len(driver)}: install a "
            "build of torch for the driver's CUDA, or unset CUDA_VISIBLE_DEVICES"
        )


def as_json(found: Mapping[str, Facts]) -> str:
    """The report as a line of JSON."""
    values = {name: facts.values for name, facts in found.items()}
    return json.dumps(values | {"problems": _problems(found)}) + "\n"


def as_text(found: Mapping[str, Facts]) -> str:
    """The report as text: a paragraph for each probe, and at the end what is broken."""
    paragraphs = []
    for name, facts in found.items():
        lines = [line for key, value in facts.values.items() for line in _lines(key, value)]
        paragraphs.append("\n".join([name, *(f"  {line}".rstrip() for line in lines)]))
    problems = [f"  {where}: {problem}" for where, problem in _problems(found)]
    paragraphs.append("\n".join(["broken", *problems] if problems else ["nothing is broken"]))
    return "\n\n".join(paragraphs) + "\n"


def _problems(found: Mapping[str, Facts]) -> list[tuple[str, str]]:
    return [(name, problem) for name, facts in found.items() for problem in facts.problems]


def _lines(name: str, value: Any) -> list[str]:
    """A fact as lines of text."""
    head = f"{name:{_NAME_WIDTH}} "
    if isinstance(value, Mapping):
        if any(isinstance(inner, (Mapping, list)) for inner in value.values()):
            nested = [line for key, inner in value.items() for line in _lines(key, inner)]
            return [name, *(f"  {line}" for line in nested)]
        value = "  ".join(f"{key}={inner}" for key, inner in value.items())
        return textwrap.wrap(
            head + value,
            _WIDTH,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
    if isinstance(value, list):
        first, *more = [str(inner) for inner in value] or [""]
        return [head + first, *(" " * len(head) + line for line in more)]
    first, *more = str(value).splitlines() or [""]
    return [head + first, *(" " * len(head) + line for line in more)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.doctor", DoctorConfig, {}, _run, argv)


def _run(config: DoctorConfig) -> int:
    found = diagnose(config)
    write_stdout(as_json(found) if config.json else as_text(found))
    return FAILED if _problems(found) else 0


if __name__ == "__main__":
    sys.exit(main())

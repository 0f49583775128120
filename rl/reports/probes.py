"""Probes of this machine: each collects facts and problems within a deadline."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.threads import in_thread

_GRACE_S = 2.0
"""Seconds beyond the deadline, in which a probe that has deadlines of its own reports them."""


@dataclass
class Facts:
    """What one probe found out."""

    values: dict[str, Any] = field(default_factory=dict)
    """JSON values by name, in the order in which a report shows them."""
    problems: list[str] = field(default_factory=list)
    """What is broken, one line each: what, and the fix."""


Probe = Callable[[float], Facts]
"""Collects facts within a deadline in seconds."""


async def run_probes(probes: Mapping[str, Probe], deadline_s: float) -> dict[str, Facts]:
    """Run probes at the same time, each on a thread of its own.

    A probe that raises or misses the deadline becomes a problem; the others are not affected.
    """
    found = await asyncio.gather(*(_run(probe, deadline_s) for probe in probes.values()))
    return dict(zip(probes, found, strict=True))


async def _run(probe: Probe, deadline_s: float) -> Facts:
    try:
        async with asyncio.timeout(deadline_s + _GRACE_S):
            return await in_thread(lambda: probe(deadline_s))
    except TimeoutError:
        return Facts({}, [f"no answer within {deadline_s:g} s"])
    # A report shows every error of a probe: a bug report must not fail for the bug it reports.
    except Exception as error:
        return Facts({}, [f"the probe failed: {type(error).__name__}: {error}"])


def output_of(words: Sequence[str], deadline_s: float) -> str:
    """The standard output of a program.

    Raises:
        RuntimeError: the program fails, cannot be started, or does not end within the deadline. The
            message has the last line of its standard error.
    """
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer within {deadline_s:g} s") from error
    except OSError as error:
        raise RuntimeError(f"cannot be started: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else "no message"
        raise RuntimeError(f"exit code {done.returncode}: {reason}")
    return done.stdout

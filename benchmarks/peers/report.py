"""Building blocks of the peers' scripts: probes, and the lines that they print.

The scripts run in the peer's own environment, so this module does not import turnwise.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

PROBE_S = 120.0
WATCHED_S = 10.0
"""Seconds after which a waiting peer counts as waiting for ever."""


class Finding(NamedTuple):
    suffers: bool
    saw: str


Probe = Callable[[], Finding]
PROBES: list[tuple[int, Probe]] = []


def probe(complaint: int) -> Callable[[Probe], Probe]:
    """Mark a function that provokes complaint ``complaint``; it is called on the main thread."""

    def mark(function: Probe) -> Probe:
        PROBES.append((complaint, function))
        return function

    return mark


def waits(call: Callable[[], object], seconds: float = WATCHED_S) -> tuple[bool, str]:
    """Whether a call is still running after ``seconds``; otherwise how it ended, and when."""
    ended: list[str] = []

    def run() -> None:
        began = time.perf_counter()
        try:
            call()
            how = "returned"
        except BaseException as error:
            how = f"raised {type(error).__name__}"
        ended.append(f"{how} after {time.perf_counter() - began:.1f} s")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return (False, ended[0]) if ended else (True, f"was still waiting after {seconds:g} s")


def main(distribution: str) -> None:
    """Run every probe of a script and print a JSON line for each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What peers print is no result.
    for complaint, function in PROBES:
        record = {"complaint": complaint, "peer": distribution, "version": version(distribution)}
        try:
            suffers, saw = function()
            record |= {"verdict": "suffers" if suffers else "does not", "saw": saw}
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            record |= {"verdict": "could not be run", "saw": why[:300]}
        out.write(json.dumps(record) + "\n")
        out.flush()
    sys.stderr.flush()
    os._exit(0)  # A call that waits for ever must not keep the process.

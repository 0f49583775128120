"""Ctrl-C while a command imports its modules: one line instead of a traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def say_interrupts() -> None:
    """In a command (``python -m rl.train``), answer Ctrl-C before the command's own code runs.

    Elsewhere, as in ``import rl``, nothing changes.
    """
    # While Python resolves the module of a command, sys.argv[0] is "-m".
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _say


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)

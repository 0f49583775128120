"""Runs source text as a module, with tracebacks that show its lines."""

from __future__ import annotations

import builtins
import io
import linecache
import sys
import types
from types import TracebackType

FILENAME = "program.py"


def load(source: str, name: str) -> types.ModuleType:
    """Run ``source`` as the module ``name``; exceptions propagate."""
    source = source.removeprefix("\ufeff")  # a byte order mark, which the interpreter skips too
    module = types.ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=FILENAME)
    sys.modules[name] = module
    lines = list(io.StringIO(source, newline=None))  # as the parser: no line ends at a form feed
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    exec(compile(source, FILENAME, "exec", dont_inherit=True), module.__dict__)
    return module


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback, starting at the program's first frame."""
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    return trace

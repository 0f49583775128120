"""The wire format of a session: host to supervisor, and supervisor to interpreters.

One byte stream between host and supervisor carries every branch of a session: the first
interpreter is branch 0, each copy that is forked from a branch is another.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("!BII")
"""Header between host and supervisor: operation, branch, and number of bytes of the body."""
RUN, INTERRUPT, FORK, CLOSE = 1, 2, 3, 4
"""Operations to the supervisor. Bodies: CALL and the code; empty; a NEW branch's number; empty."""
ANSWERED, STARTED, ENDED = 5, 6, 7
"""Operations from the supervisor. Bodies: an ANSWER, stdout, stderr and text; empty, or why the
branch did not start; a report as of a run."""
CALL = struct.Struct("!d")
"""Time limit of the call in seconds."""
SECONDS = struct.Struct("!d")
"""From the host to the supervisor of a candidate: seconds by which to extend the deadline."""
NEW = struct.Struct("!I")
ANSWER = struct.Struct("!BBdII")
"""Flags, kind of the text, seconds, and numbers of bytes of stdout and stderr. The text is the
rest."""
STDOUT_CUT, STDERR_CUT, TEXT_CUT, INTERRUPTED = 1, 2, 4, 8
"""The flags of an answer."""

INNER = struct.Struct("!BI")
"""Header between supervisor and interpreter: operation or kind, and number of bytes of the body."""
INTERRUPTS = struct.Struct("!I")
"""Header of a RUN's code: number of earlier interrupts. A further one is meant for this call."""
CUT = 0x80
"""Flag of a kind: the text is truncated."""
NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED = 10, 11, 12, 13, 14, 15
"""Kinds of an interpreter's message: no value; a value's repr; a traceback; a MemoryError's
traceback; ready for the first call; why the interpreter could not be copied."""
KINDS = frozenset({NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED})


def frame(operation: int, branch: int, body: bytes = b"") -> bytes:
    """A frame between host and supervisor."""
    return HEAD.pack(operation, branch, len(body)) + body

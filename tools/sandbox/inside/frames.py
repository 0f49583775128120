"""The wire format of a session, between host and supervisor and between supervisor and interpreter.

A branch is one interpreter of a session. The first interpreter is branch 0, and each copy that is
forked from a branch is a further branch. One byte stream between host and supervisor carries the
frames of all branches.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("!BII")
"""Header of a frame between host and supervisor: operation, branch, number of bytes of the body."""
RUN, INTERRUPT, FORK, CLOSE = 1, 2, 3, 4
"""Operations that the host sends. Their bodies, in this order: ``CALL`` and the code; nothing; the
new branch's number as ``NEW``; nothing."""
ANSWERED, STARTED, ENDED = 5, 6, 7
"""Operations that the supervisor sends. Their bodies, in this order: ``ANSWER``, stdout, stderr and
text; nothing, or the reason why the branch did not start; a report like that of a run."""
CALL = struct.Struct("!d")
"""Header of a RUN's body: time limit of the call in seconds."""
SECONDS = struct.Struct("!d")
"""Message from the host to a candidate's supervisor: seconds by which to extend the deadline."""
NEW = struct.Struct("!I")
ANSWER = struct.Struct("!BBdII")
"""Header of an ANSWERED's body: flags, kind of the text, seconds that the call took, number of
bytes of stdout, number of bytes of stderr. The text is the rest of the body."""
STDOUT_CUT, STDERR_CUT, TEXT_CUT, INTERRUPTED = 1, 2, 4, 8
"""The flags in ``ANSWER``."""

INNER = struct.Struct("!BI")
"""Header of a frame between supervisor and interpreter: operation or kind, size of the body."""
INTERRUPTS = struct.Struct("!I")
"""Header of the code that an interpreter gets: number of interrupts before this call. Any further
interrupt is meant for this call."""
CUT = 0x80
"""Flag in a kind: the text is truncated."""
NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED = 10, 11, 12, 13, 14, 15
"""Kinds of an interpreter's messages, in this order: no value; a value's repr; a traceback; a
MemoryError's traceback; ready for the first call; the reason why the copy failed."""
KINDS = frozenset({NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED})


def frame(operation: int, branch: int, body: bytes = b"") -> bytes:
    """A frame between host and supervisor."""
    return HEAD.pack(operation, branch, len(body)) + body

"""The wire of a session: between the judge and a warden, and between a warden and interpreters.

One byte stream leads from the judge to a warden, and carries every branch of a session: the first
interpreter is branch 0, each copy that is forked from a branch is another.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("!BII")
"""Between judge and warden: operation, branch, bytes of the body."""
RUN, INTERRUPT, FORK, CLOSE = 1, 2, 3, 4
"""To the warden: a CALL and the code; nothing; a NEW branch's number; nothing."""
ANSWERED, STARTED, ENDED = 5, 6, 7
"""From the warden: an ANSWER, stdout, stderr, text; why it did not start, empty where it did; a
report as of a run."""
CALL = struct.Struct("!d")
"""Seconds that the call may take."""
SECONDS = struct.Struct("!d")
"""From the judge to the warden of a run that answers: what it may take longer."""
NEW = struct.Struct("!I")
ANSWER = struct.Struct("!BBdII")
"""Flags, kind of the text, seconds, bytes of stdout, bytes of stderr; the text is the rest."""
STDOUT_CUT, STDERR_CUT, TEXT_CUT, INTERRUPTED = 1, 2, 4, 8
"""The flags of an answer."""

INNER = struct.Struct("!BI")
"""Between warden and interpreter: operation or kind, bytes of the body."""
INTERRUPTS = struct.Struct("!I")
"""Before the code of a RUN: how many interrupts earlier calls had. One more is for this one."""
CUT = 0x80
"""Added to a kind: the text was longer."""
NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED = 10, 11, 12, 13, 14, 15
"""Kinds: no value; a value's repr; a traceback; one of a MemoryError; waiting for the first call;
why the interpreter could not be copied."""
KINDS = frozenset({NOTHING, VALUE, ERROR, MEMORY, READY, REFUSED})


def frame(operation: int, branch: int, body: bytes = b"") -> bytes:
    """A frame between judge and warden."""
    return HEAD.pack(operation, branch, len(body)) + body

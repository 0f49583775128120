"""What a warden takes from an interpreter that is not trusted."""

from __future__ import annotations

import socket
from pathlib import Path

from tools.sandbox.inside.branch import Branch
from tools.sandbox.inside.child import Child, Stream


def test_descriptors_that_a_program_sends_to_its_warden_are_not_taken():
    mine, theirs = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    nothing = Stream(-1)
    copy = Branch(1, Child(0, -1, mine, -1, nothing, nothing), 0.0, 0.0)
    with mine, theirs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        socket.send_fds(theirs, [b"x"], [mine.fileno()] * 4)
        assert copy.hear(100, []) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before

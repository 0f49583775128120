"""The host's request to a supervisor, and the supervisor's reply."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.sandbox.limits import Limits


@dataclass(frozen=True)
class Request:
    """One job for a supervisor."""

    mode: str
    """"program", "calls", "asserts" or "session"."""
    source: str
    limits: Limits
    stdin: bytes = b""
    files: tuple[tuple[str, bytes], ...] = ()
    collect: tuple[str, ...] = ()
    """Patterns of the files that the run returns."""
    idle_s: float = 0.0
    """For sessions: seconds without a call after which the session ends."""
    life_s: float = 0.0
    """For sessions: seconds after which the session ends in any case."""

    def encode(self) -> bytes:
        """The request as bytes: the header's length, the header as JSON, standard input, files."""
        source = self.source.encode("utf-8", "surrogatepass")
        blobs = [source, *(content for _, content in self.files)]
        head = {
            "mode": self.mode,
            "wall_s": self.limits.wall_s,
            "cpu_s": self.limits.cpu_seconds,
            "total_cpu_s": self.limits.total_cpu_s,
            "memory_mb": self.limits.memory_mb,
            "processes": self.limits.processes,
            "disk_mb": self.limits.disk_mb,
            "output_kb": self.limits.output_kb,
            "files": [name for name, _ in self.files],
            "stdin_size": len(self.stdin),
            "sizes": [len(blob) for blob in blobs],
            "collect": self.collect,
            "returned_kb": self.limits.returned_kb,
            "idle_s": self.idle_s,
            "life_s": self.life_s,
        }
        body = json.dumps(head).encode()
        return b"".join([struct.pack("!I", len(body)), body, self.stdin, *blobs])


@dataclass(frozen=True)
class Reply:
    """A supervisor's report after every process of its run is dead."""

    head: dict[str, Any]
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]

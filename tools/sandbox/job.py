"""What a warden is asked, and what it reports."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.sandbox.limits import Limits


@dataclass(frozen=True)
class Request:
    """One job for a warden."""

    mode: str
    """"program", "calls", "asserts" or "session"."""
    source: str
    limits: Limits
    stdin: bytes = b""
    files: tuple[tuple[str, bytes], ...] = ()
    collect: tuple[str, ...] = ()
    """Patterns of the files to return."""
    idle_s: float = 0.0
    """Sessions: seconds between calls after which it ends."""
    life_s: float = 0.0
    """Sessions: seconds after which it ends anyway."""

    def encode(self) -> bytes:
        """The job as a warden reads it."""
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
    """What a warden reports after the last process of its run is dead."""

    head: dict[str, Any]
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]

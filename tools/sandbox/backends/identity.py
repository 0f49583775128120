"""Checks that root can run programs as another user. Inside a container, this can be forbidden."""

from __future__ import annotations

import os
from pathlib import Path

from tools.sandbox.errors import SandboxUnavailable

_NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "KILL": 5, "SETGID": 6, "SETUID": 7}


def check_may_change_user(backend: str, *capabilities: str) -> None:
    """Check that root has the capabilities to give programs another user id.

    Args:
        backend: name of the backend, for the error.
        capabilities: names of the required capabilities, without ``CAP_``.

    Raises:
        SandboxUnavailable: this process runs as root and lacks some of them. Other users need none.
    """
    if os.geteuid() != 0:
        return
    held = _effective()
    missing = [name for name in capabilities if not held >> _NUMBERS[name] & 1]
    if missing:
        raise SandboxUnavailable(
            f"{backend}: root runs programs as another user, but lacks the capabilities for it "
            f"({', '.join(missing)}): start this as another user than root, or add them "
            f"(docker: {' '.join(f'--cap-add={name}' for name in missing)})"
        )


def is_mapped(first: int, count: int = 1) -> bool:
    """Whether this user namespace has user ids ``first`` to ``first + count - 1``."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        low, _, size = map(int, line.split())
        if low <= first and first + count <= low + size:
            return True
    return False


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    raise AssertionError("/proc/self/status names no capabilities")

"""Which backends of the sandbox must work here; tests of the others are skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from tools.sandbox.make import BACKENDS

VARIABLE = "TURNWISE_BACKENDS"
"""Environment variable: names of backends, with commas between them."""


def missing(backend: str, reason: str) -> NoReturn:
    """End a test whose backend does not start: as failed where it must start, else as skipped.

    Args:
        backend: its name, or "auto".
        reason: what the sandbox says.
    """
    required = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    unknown = sorted(set(required) - set(BACKENDS))
    if unknown:
        pytest.fail(f"{VARIABLE} names {', '.join(unknown)}: expected {', '.join(BACKENDS)}")
    if backend in required or (backend == "auto" and required):
        pytest.fail(f"{backend} must start here ({VARIABLE}={','.join(required)}): {reason}")
    pytest.skip(reason)

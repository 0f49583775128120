"""Backends of the sandbox that must work here; tests of other backends may be skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from tools.sandbox.make import BACKENDS

VARIABLE = "TURNWISE_BACKENDS"
"""Environment variable: names of backends, with commas between them."""


def missing(backend: str, reason: str) -> NoReturn:
    """End a test whose backend does not start: fail it if the backend must start, else skip it.

    Args:
        backend: its name, or "auto".
        reason: message of the sandbox.
    """
    required = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    unknown = sorted(set(required) - set(BACKENDS))
    if unknown:
        pytest.fail(f"{VARIABLE} names {', '.join(unknown)}: expected {', '.join(BACKENDS)}")
    if backend in required or (backend == "auto" and required):
        pytest.fail(f"{backend} must start here ({VARIABLE}={','.join(required)}): {reason}")
    pytest.skip(reason)

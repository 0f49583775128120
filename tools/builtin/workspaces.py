"""Workspaces of the built-in tools ``bash``, ``edit`` and ``read``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tools.sandbox import AnySandbox, Limits, make_sandbox
from tools.workspace.pool import WorkspacePool

MAX_PROCESSES = 32
"""Maximum number of processes and threads of a workspace at the same time."""


def pool_of(
    sandbox: str | AnySandbox = "auto",
    *,
    memory_mb: int = 512,
    max_sessions: int = 256,
    max_chars: int = 10_000,
) -> WorkspacePool:
    """Make the workspaces of an agent's tools.

    Args:
        sandbox: a running sandbox, or the name of a backend for a sandbox of the pool's own.
        memory_mb: memory limit of a workspace in MiB. Only for the pool's own sandbox.
        max_sessions: maximum number of open workspaces. Only for the pool's own sandbox.
        max_chars: maximum number of characters of a command's output.

    Raises:
        ValueError: a number is outside its range.
    """
    if max_chars < 100:
        raise ValueError(f"max_chars ({max_chars}) must be >= 100")
    chosen: AnySandbox | Callable[[], AnySandbox]
    if isinstance(sandbox, str):
        limits = Limits(wall_s=30.0, memory_mb=memory_mb, processes=MAX_PROCESSES)
        chosen = partial(make_sandbox, sandbox, limits, max_sessions=max_sessions)
    else:
        chosen = sandbox
    return WorkspacePool(chosen, max_chars=max_chars)

"""Errors of workspaces."""

from __future__ import annotations


class WorkspaceFailure(RuntimeError):
    """Raised when the infrastructure of a workspace fails: its sandbox, container or engine.

    No command of an agent causes it. It never becomes a reward.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether another attempt in a new workspace can succeed."""


class WorkspaceOver(RuntimeError):
    """Raised when the workspace has ended: the agent destroyed it, or it exceeded a limit.

    Its files are lost. The message says how it ended.
    """


class ForkRefused(RuntimeError):
    """Raised when a workspace cannot be copied. The message gives the reason."""

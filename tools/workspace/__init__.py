"""Workspaces: a folder of files and a shell for each episode, and where they run."""

from tools.workspace.errors import ForkRefused, WorkspaceFailure, WorkspaceOver
from tools.workspace.workspace import CommandResult, Workspace

__all__ = ["CommandResult", "ForkRefused", "Workspace", "WorkspaceFailure", "WorkspaceOver"]

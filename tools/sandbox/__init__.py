"""Runs programs in isolated processes and grades submissions. No program can forge its verdict."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tools.sandbox.errors import (
    CopyRefused,
    SandboxBusy,
    SandboxFailure,
    SandboxUnavailable,
    SessionOver,
)
from tools.sandbox.grading.cases import (
    APPS,
    LIVECODEBENCH,
    AssertTest,
    CallTest,
    StdioTest,
    Test,
)
from tools.sandbox.limits import Limits
from tools.sandbox.results import CallResult, Outcome, OutcomeKind, RunResult, Status, Verdict

if TYPE_CHECKING:
    from tools.sandbox.health import Health
    from tools.sandbox.interface import AnySandbox, AnySession, AnySnapshot
    from tools.sandbox.make import make_sandbox
    from tools.sandbox.sandbox import Sandbox
    from tools.sandbox.session import Session, Snapshot

__all__ = [
    "APPS",
    "LIVECODEBENCH",
    "AnySandbox",
    "AnySession",
    "AnySnapshot",
    "AssertTest",
    "CallResult",
    "CallTest",
    "CopyRefused",
    "Health",
    "Limits",
    "Outcome",
    "OutcomeKind",
    "RunResult",
    "Sandbox",
    "SandboxBusy",
    "SandboxFailure",
    "SandboxUnavailable",
    "Session",
    "SessionOver",
    "Snapshot",
    "Status",
    "StdioTest",
    "Test",
    "Verdict",
    "make_sandbox",
]

_LOADED_WHEN_USED = {
    "AnySandbox": "interface",
    "AnySession": "interface",
    "AnySnapshot": "interface",
    "Health": "health",
    "Sandbox": "sandbox",
    "Session": "session",
    "Snapshot": "session",
    "make_sandbox": "make",
}
"""For each name that is imported on first use, the module that defines it. Importing these modules
at once would slow down a command's ``--help``."""


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)

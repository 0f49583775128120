"""Programs in isolated processes, and verdicts that a program cannot forge."""

from tools.sandbox.cases import AssertTest, CallTest, StdioTest, Test
from tools.sandbox.errors import (
    CopyRefused,
    SandboxBusy,
    SandboxFailure,
    SandboxUnavailable,
    SessionOver,
)
from tools.sandbox.health import Health
from tools.sandbox.interface import AnySandbox, AnySession, AnySnapshot
from tools.sandbox.limits import Limits
from tools.sandbox.make import make_sandbox
from tools.sandbox.results import CallResult, Outcome, OutcomeKind, RunResult, Status, Verdict
from tools.sandbox.sandbox import Sandbox
from tools.sandbox.session import Session, Snapshot

__all__ = [
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

"""Programs in isolated processes, and verdicts that a program cannot forge."""

from tools.sandbox.cases import AssertTest, CallTest, StdioTest, Test
from tools.sandbox.errors import SandboxFailure, SandboxUnavailable
from tools.sandbox.limits import Limits
from tools.sandbox.make import make_sandbox
from tools.sandbox.results import Outcome, OutcomeKind, RunResult, Status, Verdict
from tools.sandbox.sandbox import Sandbox

__all__ = [
    "AssertTest",
    "CallTest",
    "Limits",
    "Outcome",
    "OutcomeKind",
    "RunResult",
    "Sandbox",
    "SandboxFailure",
    "SandboxUnavailable",
    "Status",
    "StdioTest",
    "Test",
    "Verdict",
    "make_sandbox",
]

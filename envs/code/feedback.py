"""The agent's feedback from the public tests."""

from __future__ import annotations

from envs.code.task import CodeTask
from envs.code.values import text_of
from tools.sandbox import AssertTest, CallTest, Outcome, OutcomeKind, StdioTest, Test, Verdict

LONGEST_VALUE = 200
"""Maximum characters of a value, an input or a message."""

_ENDINGS = {
    OutcomeKind.TIMEOUT: "ran out of time",
    OutcomeKind.MEMORY: "ran out of memory",
    OutcomeKind.OUTPUT: "printed too much",
    OutcomeKind.KILLED: "ended the process",
    OutcomeKind.NOT_RUN: "was not run",
}


def feedback(task: CodeTask, verdict: Verdict) -> str:
    """Describe the first failed public test: its call, its output and the expected output.

    If all tests passed but the program ended with an error, describe the error.
    """
    failed = [
        (test, outcome)
        for test, outcome in zip(task.public, verdict.outcomes, strict=True)
        if not outcome.passed
    ]
    if not failed:
        return verdict.detail
    # A test that ends the process leaves other tests without a run.
    ran = [pair for pair in failed if pair[1].kind is not OutcomeKind.NOT_RUN]
    line = _line(task, *(ran or failed)[0])
    # A program's error message may hold lone surrogates, which tokenizers refuse.
    return line.encode("utf-8", "backslashreplace").decode()


def blank(task: CodeTask) -> str:
    """Feedback without values, for control experiments."""
    return f"{task.entry_point}(?) returned ?, expected ?"


def _line(task: CodeTask, test: Test, outcome: Outcome) -> str:
    match test:
        case CallTest():
            arguments = [text_of(value) for value in test.args]
            arguments += [f"{name}={text_of(value)}" for name, value in test.kwargs.items()]
            call = f"{task.entry_point}({_short(', '.join(arguments))})"
            said = f"returned {_short(text_of(outcome.value))}"
            return f"{call} {_happened(outcome, said)}, expected {_short(text_of(test.expected))}"
        case AssertTest():
            # The output is known only if the code is a single call.
            known = outcome.kind is OutcomeKind.WRONG and outcome.error_type == ""
            failed = f"returned {_short(text_of(outcome.value))}" if known else "failed"
            return f"{_short(test.code)}: {_happened(outcome, failed)}"
        case StdioTest():
            said = f"printed {_short(text_of(outcome.value))}"
            given = f"on input {_short(repr(test.stdin))} it"
            return f"{given} {_happened(outcome, said)}, expected {_short(repr(test.stdout))}"


def _happened(outcome: Outcome, wrong: str) -> str:
    if outcome.kind is OutcomeKind.WRONG:
        return wrong
    if outcome.kind is OutcomeKind.ERROR:
        error = ": ".join(part for part in (outcome.error_type, outcome.message) if part)
        # The message of a syntax error ends with its line.
        located = outcome.line is None or f"line {outcome.line}" in outcome.message
        where = "" if located else f" (line {outcome.line})"
        return f"raised {_short(error)}{where}"
    return _ENDINGS[outcome.kind]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."

"""The test process of a grade: runs test code in which the candidate's functions are stubs.

No line of the candidate (the submission) runs in this process. A stub sends its call to the host,
which forwards the call to the candidate's process. Only builtin data comes back, so the outcome can
be trusted.
"""

from __future__ import annotations

import ast
import builtins
import socket
from collections.abc import Callable
from typing import Any

from tools.sandbox.inside import codec
from tools.sandbox.inside.program import calls, loader

_NOT_RAISED_AGAIN = (StopIteration, StopAsyncIteration)
"""Exceptions of the candidate that could silently end a loop in the test code and skip later
checks."""


class CandidateError(Exception):
    """Raised in test code in place of a candidate's exception that cannot be raised again here."""


def serve(channel: socket.socket) -> None:
    """Run the test code of each message and answer with the outcome, until the channel closes."""
    while True:
        try:
            _, number, setup, code, entry_point = codec.receive_message(channel)
        except EOFError:
            return
        codec.send_message(channel, [*_run(channel, setup, code, entry_point), number])


def _run(channel: socket.socket, setup: str, code: str, entry_point: str | None) -> list[Any]:
    try:
        names = [entry_point] if entry_point else sorted(_free_names(f"{setup}\n{code}"))
        namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        stubs = {name: _stub(channel, name) for name in names}
        namespace.update(stubs)
        exec(compile(setup, "setup.py", "exec", dont_inherit=True), namespace)
        if entry_point:
            namespace.update(stubs)  # a setup may define a function of the same name
        exec(compile(code, loader.FILENAME, "exec", dont_inherit=True), namespace)
    except AssertionError as error:
        return ["wrong", *_described(error, code)]
    except BaseException as error:
        return ["error", *_described(error, code)]
    return ["passed"]


def _described(error: BaseException, code: str) -> list[Any]:
    name, message, line = calls.describe(error)
    if not message and line is not None:
        message = code.splitlines()[line - 1].strip()
    return [name, message, line]


def _stub(channel: socket.socket, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        codec.send_message(channel, ["call", name, codec.encode(arguments), codec.encode(keywords)])
        # If the candidate's process has ended, no answer comes: the host has failed this test.
        kind, *rest = codec.receive_message(channel)
        if kind == "value":
            return codec.decode(rest[0])
        raise _as_raised(rest[0], rest[1])

    call.__name__ = call.__qualname__ = name
    return call


def _as_raised(name: str, message: str) -> Exception:
    kind = vars(builtins).get(name)
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, _NOT_RAISED_AGAIN)
    ):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError, for example, takes more arguments
            return CandidateError(f"{name}: {message}")
    return CandidateError(f"{name}: {message}")


def _free_names(code: str) -> set[str]:
    """Names that the code reads, except builtins and names that the code itself binds."""
    read: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=given):
                bound.add((given or name).split(".")[0])
    return read - bound

"""The candidate's process of a grade: loads a submission and answers calls to it, one at a time.

This process holds no expected value and decides nothing; it only sends the submission's answers. If
a submission writes to the channel itself, the host treats this like any other answer.
"""

from __future__ import annotations

import os
import socket
import sys
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from tools.sandbox.inside import codec
from tools.sandbox.inside.program import loader

_MODULE = "solution"
_MAX_TEXT = 1000
"""Maximum number of characters of an error message to send."""


def serve(channel: socket.socket, source: str) -> NoReturn:
    """Load ``source``, report whether it loaded, and answer calls until the channel closes."""
    try:
        module = loader.load(source, _MODULE)
    except BaseException as error:
        codec.send_message(channel, ["failed", *describe(error)])
        _exit_process()
    codec.send_message(channel, ["loaded"])
    while True:
        try:
            _, number, name, arguments, keywords = codec.receive_message(channel)
        except EOFError:
            break
        try:
            frame = codec.pack([*_answer(module, name, arguments, keywords), number])
        except codec.CodecError as error:
            frame = codec.pack(["strange", str(error), number])
        channel.sendall(frame)
    _exit_process()


def _answer(module: ModuleType, name: str, arguments: Any, keywords: Any) -> list[Any]:
    function = module.__dict__.get(name)
    if not callable(function):
        return ["absent", name]
    try:
        value = function(*codec.decode(arguments), **codec.decode(keywords))
        return ["value", codec.encode(value)]
    except codec.CodecError as error:
        return ["strange", str(error)]
    except BaseException as error:
        return ["raised", *describe(error)]


def describe(error: BaseException) -> list[Any]:
    """An exception as a list: the name of its type, its message, and its line in the program.

    The line is None if the exception has none there.
    """
    try:
        message = str(error)[:_MAX_TEXT]
    except BaseException:
        message = "(the message cannot be shown)"
    # Not ``type(error).__name__``: a metaclass may override the attribute.
    name = type.__dict__["__name__"].__get__(type(error))
    return [name[:_MAX_TEXT], message, _line(error)]


def _line(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == loader.FILENAME:
        return error.lineno if type(error.lineno) is int else None
    line = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == loader.FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _exit_process() -> NoReturn:
    # Threads and exit handlers of the candidate must not delay the verdict.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)

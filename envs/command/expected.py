"""Errors that end a command with a message instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envs import CheckFailed, TextEnv
from envs.datasets import DatasetUnavailable
from envs.episode import EnvFailure
from tools.registry import PluginImportError, UnknownNameError
from tools.sandbox.errors import SandboxUnavailable

EXPECTED_ERRORS: tuple[type[Exception], ...] = (
    UnknownNameError,
    PluginImportError,
    DatasetUnavailable,
    SandboxUnavailable,
    EnvFailure,
    ValueError,
    OSError,
)
"""Exceptions that end a command with a one-line message."""


@contextmanager
def located(
    env_type: type[TextEnv[Any, Any]], env_id: str, passed: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Name the place of an error that an environment's code raises while the context is open.

    Args:
        env_type: class of the environment.
        env_id: its id, for the message.
        passed: exceptions that pass unchanged; of built-in environments, all of EXPECTED_ERRORS.

    Raises:
        CheckFailed: the code raised an error; the only violation names exception and place.
    """
    if env_type.__module__.startswith("envs."):
        passed = EXPECTED_ERRORS
    try:
        yield
    # Foreign code, which may also call sys.exit.
    except (Exception, SystemExit) as error:
        if isinstance(error, (*passed, CheckFailed)):
            raise
        raise CheckFailed.by_error(env_id, env_type, error) from error

"""What every command of ``rl`` does around its work: parse, refuse, say errors in one line."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TextIO, TypeVar

from agents.policy import PolicyFailure
from envs.datasets import DatasetUnavailable
from envs.episode import EnvFailure
from rl.cli import parse
from rl.config import ModelConfig, as_lines
from rl.errors import FAILED, RunFailure, UsageError
from rl.run.files import put
from rl.run.interrupt import terminable
from rl.settings.cores import bound_spinning
from rl.settings.models import find_model
from tools.sandbox.errors import SandboxUnavailable

INTERRUPTED = 130
"""Exit code of a command that somebody stopped."""
EXPECTED_ERRORS = (
    UsageError,
    RunFailure,
    SandboxUnavailable,
    DatasetUnavailable,
    EnvFailure,
    PolicyFailure,
)
"""What ends a command with one line; everything else is a bug and shows its traceback."""


class Runnable(Protocol):
    """The settings of a command: a dataclass."""

    @property
    def dry_run(self) -> bool:
        """Whether they are printed, and nothing is done."""
        ...


C = TypeVar("C", bound=Runnable)


class _Log(logging.StreamHandler[TextIO]):
    """Warnings on stderr. On a full disk they are lost without a word of logging's own.

    What a command itself says there next ends it, in one line.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def run_command(
    module: str,
    config_type: type[C],
    presets: Mapping[str, Mapping[str, str]],
    work: Callable[[C], int],
    argv: Sequence[str] | None,
) -> int:
    """Parse the command line of ``python -m module`` and do its work.

    Ctrl-C and SIGTERM end it in order, at any time of the work.

    Args:
        module: for the help.
        config_type: what the command line fills in.
        presets: named settings.
        work: what the command does; returns its exit code.
        argv: the words after the module; None: this process's.

    Returns:
        The exit code.
    """
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[_Log()])
    bound_spinning()
    words = sys.argv[1:] if argv is None else argv
    try:
        config = parse(config_type, words, command=f"python -m {module}", presets=presets)
        config = with_model_folder(config)
        if config.dry_run:
            put(sys.stdout, as_lines(config))
            return 0
        with terminable():
            return work(config)
    except EXPECTED_ERRORS as error:
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        last_words(f"error: {error}{notes}")
        return error.exit_code if isinstance(error, RunFailure) else FAILED
    except KeyboardInterrupt:
        last_words("interrupted")
        return INTERRUPTED


def with_model_folder(config: C) -> C:
    """The settings, where a run's folder that ``model`` names is replaced by its checkpoint.

    Raises:
        UsageError: the folder does not exist, or holds no model.
    """
    if not isinstance(config, ModelConfig) or not config.loads_model:
        return config
    found = find_model(config.model)
    return config if found == config.model else replace(config, model=found)


def say(text: str) -> None:
    """A line of progress, apart from the result."""
    put(sys.stderr, f"{text}\n")


def last_words(text: str) -> None:
    """The line that a command ends with; where nobody can be told, the exit code says it."""
    with contextlib.suppress(RunFailure):
        put(sys.stderr, f"{text}\n")


def answer(result: Mapping[str, object]) -> int:
    """Write what a command found as a line of JSON; returns the exit code of success."""
    put(sys.stdout, json.dumps(result) + "\n")
    return 0

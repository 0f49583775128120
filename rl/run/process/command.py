"""Code that all commands of ``rl`` share: parsing, one-line errors, exit codes, output."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TextIO, TypeVar

from rl.errors import EXPECTED_ERRORS, FAILED, INTERRUPTED, RunFailure
from rl.files import write_stderr, write_stdout
from rl.run.process.cores import bound_spinning
from rl.run.process.interrupt import terminable
from rl.settings.models import find_model
from rl.settings.parsing.command_line import parse
from rl.settings.run import ModelConfig, as_lines
from rl.settings.tracking import TrackingConfig


class Runnable(Protocol):
    """The settings of a command, a dataclass."""

    @property
    def dry_run(self) -> bool:
        """Whether to print the settings and stop."""
        ...


C = TypeVar("C", bound=Runnable)


class _Log(logging.StreamHandler[TextIO]):
    """Shows warnings on stderr.

    If stderr cannot be written, a warning is lost without a traceback. The command ends as soon as
    it writes a line of its own to stderr, because this fails.
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
    explain: Callable[[C], str] = lambda config: "",
) -> int:
    """Parse the command line of ``python -m module`` and do the command's work.

    Ctrl-C and SIGTERM end the work cleanly, at any time.

    Args:
        module: the command's module, for the help.
        config_type: the command's settings.
        presets: named settings.
        work: does the work and returns the exit code.
        argv: the words of the command line after the module, or None for the words of this process.
        explain: returns the text that a dry run writes to stderr after the settings.

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
            _check_tracking(config)
            write_stdout(as_lines(config))
            if added := explain(config):
                report(added)
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


def _check_tracking(config: object) -> None:
    """Check sinks and callbacks, so that a dry run reports their errors."""
    if isinstance(config, TrackingConfig):
        config.check_tracking()


def with_model_folder(config: C) -> C:
    """The settings. If ``model`` is a run's folder, a checkpoint of the run replaces it.

    Raises:
        UsageError: the folder does not exist, or holds no model.
    """
    if not isinstance(config, ModelConfig) or not config.loads_model:
        return config
    found = find_model(config.model)
    return config if found == config.model else replace(config, model=found)


def report(text: str) -> None:
    """Write a line of progress to stderr."""
    write_stderr(f"{text}\n")


def last_words(text: str) -> None:
    """Write the last line of a command to stderr, if stderr can still be written."""
    with contextlib.suppress(RunFailure):
        write_stderr(f"{text}\n")


def answer(result: Mapping[str, object]) -> int:
    """Write a command's result as a line of JSON, and return the exit code of success."""
    write_stdout(json.dumps(result) + "\n")
    return 0

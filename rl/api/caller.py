"""Runs a command's work for a Python caller, and restores the process afterwards."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rl.api.job import Job
from rl.errors import UsageError
from rl.run.process.command import Runnable, with_model_folder
from rl.run.process.cores import bound_spinning
from rl.settings.run import RunConfig

C = TypeVar("C", bound=Runnable)
T = TypeVar("T")
Work = Callable[[C, Job[Any]], Coroutine[Any, Any, T]]
CLOSE_S = 120.0
"""Seconds within which a command must close, for commands without the setting ``close_s``."""
_SPIN = "GOMP_SPINCOUNT"


def wait_for(work: Work[C, T], config: C) -> T:
    """Run a command's work in a thread, and wait for its result.

    Raises:
        UsageError: a setting is wrong.
        KeyboardInterrupt: Ctrl-C stopped the work.
    """
    config = _prepared(config)
    with _restored():
        return Job(lambda job: work(config, job), _close_s(config)).result()


async def while_awaited(work: Work[C, T], config: C) -> T:
    """Asynchronous form of :func:`wait_for`; the caller's event loop stays free.

    Raises:
        CancelledError: this call was cancelled, and the work has stopped.
    """
    config = _prepared(config)
    with _restored():
        return await Job(lambda job: work(config, job), _close_s(config)).wait()


def blocking(work: Callable[[C], T], config: C, job: Job[Any]) -> T:
    """Run work that needs no event loop. A request to stop raises KeyboardInterrupt in the work."""
    ident = ctypes.c_ulong(threading.get_ident())

    def interrupt() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))

    with job.listening(interrupt):
        return work(config)


def _prepared(config: C) -> C:
    """The settings, with a run's folder in ``model`` replaced by the run's checkpoint."""
    if config.dry_run:
        raise UsageError("dry_run (True) is for the command line: print(config) shows the settings")
    return with_model_folder(config)


def _close_s(config: Runnable) -> float:
    return config.close_s if isinstance(config, RunConfig) else CLOSE_S


@contextmanager
def _restored() -> Iterator[None]:
    """Restore the process-wide settings that a command changes, when the context ends."""
    spin = os.environ.get(_SPIN)
    bound_spinning()  # Before the import of torch, which reads it.
    import torch
    from transformers.utils import logging as transformers_logging

    threads, bars = torch.get_num_threads(), transformers_logging.is_progress_bar_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if bars:
            transformers_logging.enable_progress_bar()
        if spin is None:
            os.environ.pop(_SPIN, None)

"""A command's work on behalf of a caller: its settings prepared, its process left as it was."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rl.command import Runnable, with_model_folder
from rl.config import RunConfig
from rl.errors import UsageError
from rl.run.job import Job
from rl.settings.cores import bound_spinning

C = TypeVar("C", bound=Runnable)
T = TypeVar("T")
Work = Callable[[C, Job[Any]], Coroutine[Any, Any, T]]
CLOSE_S = 120.0
"""Seconds in which a command without ``close_s`` must have ended."""
_SPIN = "GOMP_SPINCOUNT"


def here(work: Work[C, T], config: C) -> T:
    """Do a command's work in a thread and wait for it.

    Raises:
        UsageError: a setting is wrong.
        KeyboardInterrupt: Ctrl-C stopped it.
    """
    config = _prepared(config)
    with _as_it_was():
        return Job(lambda job: work(config, job), _close_s(config)).result()


async def while_awaited(work: Work[C, T], config: C) -> T:
    """As :func:`here`; the caller's event loop goes on.

    Raises:
        CancelledError: this call was cancelled; the work has stopped.
    """
    config = _prepared(config)
    with _as_it_was():
        return await Job(lambda job: work(config, job), _close_s(config)).wait()


def blocking(work: Callable[[C], T], config: C, job: Job[Any]) -> T:
    """Do work that has no event loop; a wish to stop is a KeyboardInterrupt within it."""
    ident = ctypes.c_ulong(threading.get_ident())

    def interrupt() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))

    with job.listening(interrupt):
        return work(config)


def _prepared(config: C) -> C:
    """The settings as a command begins with them."""
    if config.dry_run:
        raise UsageError("dry_run (True) is for the command line: print(config) shows the settings")
    return with_model_folder(config)


def _close_s(config: Runnable) -> float:
    return config.close_s if isinstance(config, RunConfig) else CLOSE_S


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what work sets for the whole process."""
    spin = os.environ.get(_SPIN)
    bound_spinning()  # Read when torch is loaded, if this is the first to do so.
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

"""Environment variables for the processes that vLLM starts, and for no others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def child_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context in which child processes inherit ``variables`` and ignore Ctrl-C.

    At the end, the previous environment is restored. This also removes the variables that vLLM sets
    itself to preload libraries and bind threads, which other child processes must not inherit.
    """
    before = dict(os.environ)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(variables)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)

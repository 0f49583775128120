"""Environment variables for the processes that vLLM starts, and for no others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def child_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let child processes inherit ``variables`` and ignore Ctrl-C while the context lasts.

    At the end, the previous environment is restored. This also removes variables that vLLM sets
    itself to preload libraries and bind threads, because other child processes must not inherit
    them.
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

"""Variables of the environment, for as long as vLLM needs them, and no others it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def handed_down(variables: Mapping[str, str]) -> Iterator[None]:
    """What the processes inherit that vLLM starts here: variables, and that Ctrl-C is not theirs.

    Then these are undone, and the variables that vLLM sets itself: it preloads libraries and binds
    threads, which no other child of this process should inherit.
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

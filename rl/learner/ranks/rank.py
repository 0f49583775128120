"""One rank: a process that holds its part of the model, and does what the run's process asks.

The run's process starts each rank as ``python -m rl.learner.ranks.rank FD``, where FD is one end of
a socket pair. All ranks get the same calls in the same order. Each answers, and rank 0's answer
carries the result. A rank ends when the socket closes, so no rank outlives its run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from agents.torch_thread import TorchThread
from rl.errors import RunFailure, UsageError
from rl.learner.ranks.messages import Answer, RankSpec
from rl.learner.ranks.sharding import Ranks
from rl.learner.seam import Host

AGREED = (RunFailure, UsageError, ValueError)
"""Failures that every rank raises together, after which the ranks go on."""


class _Rank:
    """The calls of the run's process, each on the learner of this rank."""

    def __init__(self, on_progress: Callable[[], None]) -> None:
        self._on_progress = on_progress
        self.learner: Any = None
        self._world: Ranks | None = None
        self._writing: asyncio.Task[None] | None = None

    async def call(self, name: str, args: tuple[Any, ...]) -> Any:
        """Do what was asked, and return the result."""
        owner = self if name in ("open", "tensors", "save", "saved") else self.learner
        return await getattr(owner, name)(*args)

    async def open(self, spec: RankSpec) -> Any:
        """Join the other ranks, load the model and divide it."""
        if spec.deterministic:
            torch.use_deterministic_algorithms(True)
        device, dtype = torch.device(spec.device), getattr(torch, spec.dtype)
        self._world = Ranks(*(spec.rank, spec.size, spec.rendezvous, device), dtype, spec.timeout_s)
        thread = TorchThread(spec.num_threads)
        self.learner = await thread.do(spec.open, Host(thread, self._on_progress), self._world)
        return self.learner.facts

    async def tensors(self, complete: bool, folder: str | None) -> Any:
        """The weights, by rank 0: the path of a file in ``folder``, or themselves without one."""
        assert self._world is not None
        weights = await self.learner.collected(complete=complete)
        if self._world.rank or folder is None:
            return None if self._world.rank else weights
        with NamedTemporaryFile(dir=folder, prefix="turnwise-weights-", delete=False) as file:
            torch.save(weights, file)
        return file.name

    async def save(self, folder: Path, state: Any, resumable: bool) -> None:
        """Copy what a checkpoint holds, and begin to write it; see :meth:`saved`."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        write = await self.learner.prepare_save(folder, state, resumable=resumable)
        self._writing = asyncio.create_task(asyncio.to_thread(write))

    async def saved(self) -> bool:
        """Whether the checkpoint is written. Rank 0 raises what kept any rank from writing it."""
        assert self._writing is not None and self._world is not None
        if not self._writing.done():
            return False
        if (failure := self._writing.exception()) is not None and self._world.rank == 0:
            raise failure
        return True


def serve(connection: Connection[Any, Any]) -> None:
    """Answer calls until the connection closes, which ends this process."""
    lock = threading.Lock()

    def send(message: Answer | None) -> None:
        with lock:
            connection.send_bytes(pickle.dumps(message))

    calls: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                calls.put(pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            # At once, whatever this rank computes or waits for.
            os._exit(0)
        except BaseException:
            # A call that cannot be read, for example because a plug-in is not installed here.
            _die()

    threading.Thread(target=read, daemon=True).start()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    asyncio.run(_serve(_Rank(partial(send, None)), calls, send))


async def _serve(
    rank: _Rank, calls: SimpleQueue[Any], send: Callable[[Answer | None], None]
) -> None:
    while True:
        name, args = await asyncio.to_thread(calls.get)
        failure, value = None, None
        try:
            value = await rank.call(name, args)
        except AGREED as error:
            failure = error
        except BaseException:
            # The other ranks wait for this one, and would wait until their timeout.
            _die()
        send(Answer(failure, value, 0 if rank.learner is None else rank.learner.version))


def _die() -> None:
    """End this process with the error that is handled now, which the run reports."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))

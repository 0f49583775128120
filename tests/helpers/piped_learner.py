"""A learner in another process, connected by a pipe; that process runs the in-process learner."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch

from agents.torch_thread import TorchThread
from rl.learner.local import open_local
from rl.learner.seam import Host, LearnerLost

QWEN = "transformers.models.qwen3.modeling_qwen3"
"""Module that a learner would import when it loads the model."""
DEADLINE_S = 600.0
"""Of every call, the opening included."""


@dataclass(frozen=True)
class PipedWeights:
    """Weights that are requested over the pipe."""

    learner: PipedLearner
    version: int

    async def tensors(self, *, complete=False):
        return await self.learner.call("tensors", self.version, complete)


class PipedLearner:
    """See ``rl.learner.seam.Learner``."""

    def __init__(self, host, deadline_s):
        self.facts, self.version, self.deadline_s = None, 0, deadline_s
        self._on_progress = host.on_progress
        # The learners of one process are forks of one server, which imports these modules once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rl.learner.local", "piped_learner", QWEN])
        self._pipe, theirs = context.Pipe()
        # Plain bytes: multiprocessing itself would put tensors into shared memory.
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._waiting: dict[int, Future] = {}
        self._lost: LearnerLost | None = None
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def call(self, verb, *args):
        done = Future()
        with self._lock:
            number = len(self._waiting)
            self._waiting[number] = done
            if self._lost is not None:
                raise self._lost
        try:
            async with asyncio.timeout(self.deadline_s):
                await asyncio.to_thread(self._send, (number, verb, args))
                # A timeout cancels ``done``, so that no later failure is left unretrieved.
                value, self.version = await asyncio.wrap_future(done)
        except TimeoutError as error:
            self.process.kill()
            message = f"the learner's process did not {verb} within {self.deadline_s:g} s"
            raise LearnerLost(message) from error
        return value

    async def update(self, experience, version):
        return await self.call("update", experience, version)

    async def token_record(self, version):
        return await self.call("token_record", version)

    async def score(self, token_ids, temperature, supports=()):
        return await self.call("score", token_ids, temperature, supports)

    async def tolerance(self, seed):
        return await self.call("tolerance", seed)

    async def weights(self, version):
        if version != self.version:
            raise ValueError(f"version ({version}) is not the learner's, {self.version}")
        return PipedWeights(self, version)

    async def save(self, folder, state=None, *, resumable=False):
        await self.call("save", folder, state, resumable)

    async def load(self, folder, version=None):
        return await self.call("load", folder, version)

    async def offload(self):
        await self.call("offload")

    async def onload(self):
        await self.call("onload")

    async def close(self):
        self.process.kill()
        await asyncio.to_thread(self.process.join, self.deadline_s)

    def _send(self, message):
        try:
            with self._lock:
                self._pipe.send_bytes(pickle.dumps(message))
        except OSError:
            self._lose()

    def _read(self):
        try:
            while True:
                message = pickle.loads(self._pipe.recv_bytes())
                if message is None:
                    self._on_progress()
                    continue
                number, failure, value, version = message
                done = self._waiting[number]
                if not done.set_running_or_notify_cancel():
                    continue
                if failure is None:
                    done.set_result((value, version))
                else:
                    done.set_exception(failure)
        except (EOFError, OSError):
            self._lose()

    def _lose(self):
        with self._lock:
            self._lost = LearnerLost("the learner's process ended")
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._lost)


async def open_piped(spec, host, deadline_s=DEADLINE_S):
    """See ``rl.learner.seam.OpenLearner``."""
    learner = await asyncio.to_thread(PipedLearner, host, deadline_s)
    num_threads = await host.thread.do(torch.get_num_threads)
    try:
        learner.facts = await learner.call("open", spec, num_threads)
    except BaseException:
        await learner.close()
        raise
    return learner


def serve(pipe):
    """Main loop of the other process: answers calls until the pipe closes."""
    torch.set_num_threads(1)
    asyncio.run(_Server(pipe).run())


class _Server:
    def __init__(self, pipe):
        self._pipe, self._lock = pipe, threading.Lock()
        self._learner = None

    async def run(self):
        while True:
            try:
                message = await asyncio.to_thread(self._pipe.recv_bytes)
            except EOFError:
                return
            number, verb, args = pickle.loads(message)
            failure = value = None
            try:
                value = await getattr(self, verb, partial(self._ask, verb))(*args)
            except Exception as error:
                failure = error
            version = 0 if self._learner is None else self._learner.version
            self._send((number, failure, value, version))

    async def open(self, spec, num_threads):
        host = Host(TorchThread(num_threads), partial(self._send, None))
        self._learner = await open_local(spec, host)
        return self._learner.facts

    async def tensors(self, version, complete):
        handle = await self._learner.weights(version)
        return dict(await handle.tensors(complete=complete))

    async def save(self, folder, state, resumable):
        await self._learner.save(folder, state, resumable=resumable)

    async def _ask(self, verb, *args):
        return await getattr(self._learner, verb)(*args)

    def _send(self, message):
        with self._lock:
            self._pipe.send_bytes(pickle.dumps(message))

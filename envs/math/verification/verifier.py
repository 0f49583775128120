r"""Verification of answers by math-verify, in processes that stay alive and can be killed.

math-verify limits its time by an alarm signal, which works only in a main thread, and its code
never yields. A tower of powers would therefore block the caller. Here a few processes compare one
pair at a time each, for any thread and any event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from envs.math.verification.pairs import comparable
from envs.math.verification.plain_numbers import plain_verdict

LONGEST = 1000
"""Maximum number of characters of an answer. Longer answers are unverifiable."""
_SCRIPT = Path(__file__).with_name("worker.py")
_START_S = 120.0
"""Seconds for a new process to become ready."""
_WALL_S = 60.0
"""Seconds of wall time that a check can take beyond its limit of processor time. The value is high
because the machine can be busy."""
_BAD_GOLD = "bad-gold"
"""A process's response to an unreadable gold answer. Its other responses are outcomes."""


class Outcome(StrEnum):
    """The verdict on an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    UNVERIFIABLE = "unverifiable"
    """The answer is not mathematics, or its comparison takes too much time or memory."""


class UnverifiableGold(ValueError):
    """Raised when the gold answer cannot be read, or does not equal itself."""


class VerifierFailure(RuntimeError):
    """Raised when the verifier's infrastructure fails. A failure is never a verdict."""


class _Died(Exception):
    """Raised when the process exits during a check; ``code`` is ``Popen.returncode``."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self, cpu_s: float, memory_mb: int) -> None:
        self._wall_s = cpu_s + _WALL_S
        self._process = subprocess.Popen(
            # -P: the script's folder must not be on the import path.
            [sys.executable, "-P", str(_SCRIPT), str(cpu_s), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A session of its own: Ctrl-C in the terminal reaches only the caller.
            start_new_session=True,
        )

    def start(self) -> None:
        """Wait until the process is ready.

        Raises:
            VerifierFailure: the process is not ready in time.
            _Died: the process exited.
        """
        self._read(_START_S)

    def ask(self, gold: str, answer: str) -> str:
        """The process's verdict, one of the words of ``envs.math.verification.worker``.

        Raises:
            VerifierFailure: the process did not respond in time.
            _Died: the process exited.
        """
        line = json.dumps([gold, answer]).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _Died(self._process.wait()) from None
        return self._read(self._wall_s)

    def kill(self) -> None:
        """Kill the process, from any thread. Killing twice is harmless."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # A dead process's pipe may hold unread data.
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _read(self, limit_s: float) -> str:
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(number, select.POLLIN)
        deadline, word = time.monotonic() + limit_s, b""
        while not word.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise VerifierFailure(f"no answer within {limit_s:g} s: is the machine overloaded?")
            read = os.read(number, 64)
            if not read:
                raise _Died(self._process.wait())
            word += read
        return word.decode().strip()


class MathVerifier:
    """Verifies answers.

    Plain numbers are compared immediately; other answers go to processes that start at first use.
    Any thread and any event loop may call the methods.

    Args:
        workers: number of processes, or None for one per core, at most 4.
        cpu_s: seconds of processor time for one check. Verdicts do not depend on wall time, so
            other load on the machine does not change them.
        memory_mb: MiB of address space of each process.

    Raises:
        ValueError: a limit is out of range.
        ImportError: math-verify is not installed.
    """

    def __init__(
        self, *, workers: int | None = None, cpu_s: float = 2.0, memory_mb: int = 1024
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers ({workers}) must be >= 1")
        if not 0.01 <= cpu_s <= 3600:
            raise ValueError(f"cpu_s ({cpu_s}) must be from 0.01 to 3600")
        if memory_mb < 256:
            raise ValueError(f"memory_mb ({memory_mb}) must be >= 256")
        if find_spec("math_verify") is None:
            raise ImportError("needs math-verify: pip install 'math-verify[antlr4_13_2]'")
        self._cpu_s, self._memory_mb = cpu_s, memory_mb
        count = workers or min(4, len(os.sched_getaffinity(0)))
        # One thread per process: a check that waits for a thread has not started.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="turnwise-math")
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def check(self, gold: str, answer: str) -> Outcome:
        r"""Compare an answer to the gold answer, both as LaTeX without ``\boxed``. Blocks.

        Raises:
            UnverifiableGold: the gold answer cannot be read.
            VerifierFailure: no process responds.
        """
        outcome = self.quick(gold, answer)
        return self._submit(gold, answer).result() if outcome is None else outcome

    async def acheck(self, gold: str, answer: str) -> Outcome:
        """Asynchronous form of :meth:`check`; does not block."""
        outcome = self.quick(gold, answer)
        if outcome is not None:
            return outcome
        return await asyncio.wrap_future(self._submit(gold, answer))

    @staticmethod
    def quick(gold: str, answer: str) -> Outcome | None:
        """The outcome for plain numbers and overlong texts, or None if a process must compare."""
        verdict = plain_verdict(gold, answer)
        if verdict is not None:
            return Outcome.RIGHT if verdict else Outcome.WRONG
        return Outcome.UNVERIFIABLE if len(answer) > LONGEST else None

    def close(self) -> None:
        """End all processes; waiting checks fail. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.kill()
        # Waiting checks get a thread and are refused there.
        self._threads.shutdown(wait=True)
        for worker in self._all:
            worker.close()
        self._all.clear()
        self._idle.clear()

    def _submit(self, gold: str, answer: str) -> Future[Outcome]:
        with self._lock:
            if self._closed:
                raise VerifierFailure("the verifier is closed")
            return self._threads.submit(self._compare, gold, answer)

    def _compare(self, gold: str, answer: str) -> Outcome:
        """Check a pair on one of the threads."""
        pair = comparable(gold, answer)
        if isinstance(pair, bool):
            return Outcome.RIGHT if pair else Outcome.WRONG
        wanted, given = pair
        word = self._ask(wanted, given)
        # The pair killed the process; the answer is the cause if the gold can be compared with 1.
        if word is None and self._ask(wanted, "1") not in (None, _BAD_GOLD):
            word = Outcome.UNVERIFIABLE
        if word is None or word == _BAD_GOLD:
            raise UnverifiableGold(
                f"the gold answer {gold!r} cannot be verified: math-verify cannot read it, or it "
                f"takes more than {self._cpu_s:g} s or {self._memory_mb} MiB"
            )
        return Outcome(word)

    def _ask(self, gold: str, answer: str) -> str | None:
        """A process's verdict, or None if the kernel killed the process during the check."""
        for last_try in (False, True):
            worker = self._take()
            try:
                word = worker.ask(gold, answer)
            except _Died as error:
                self._drop(worker)
                if self._closed:
                    raise VerifierFailure("the verifier was closed during a check") from None
                if error.code == -signal.SIGPROF:
                    return None
                if not last_try:
                    continue
                if error.code == -signal.SIGKILL:
                    raise VerifierFailure("its process was killed, twice: out of memory?") from None
                return None
            except BaseException:
                self._drop(worker)
                raise
            self._idle.append(worker)
            return word
        raise AssertionError("the last try returns or raises")

    def _take(self) -> _Worker:
        """A ready process. If none is idle, a new one is started."""
        with self._lock:
            if self._closed:
                raise VerifierFailure("the verifier is closed")
            if self._idle:
                return self._idle.pop()
            worker = _Worker(self._cpu_s, self._memory_mb)
            self._all.add(worker)
        try:
            worker.start()
        except _Died as error:
            self._drop(worker)
            raise VerifierFailure(
                f"a process for math-verify does not start ({error}): try "
                f"{sys.executable} -P {_SCRIPT} 1 1024"
            ) from None
        except BaseException:
            self._drop(worker)
            raise
        return worker

    def _drop(self, worker: _Worker) -> None:
        worker.close()
        with self._lock:
            self._all.discard(worker)

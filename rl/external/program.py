"""The user's program, called once per episode: a function in this process, or a command."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import json
import os
import shlex
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Coroutine
from typing import IO, Any, Protocol

from envs.episode import EnvFailure
from tools.references import is_reference, load_function, takes
from tools.threads import in_thread

_TAIL = 2000
"""Number of bytes of a command's output that a failure quotes."""
KEY = "env.loop"


class Program(Protocol):
    """The user's program, which plays whole episodes."""

    async def play(self, task: Any, base_url: str, seed: int) -> float | None:
        """Play an episode. Returns the reward, or None if the program posts it to the endpoint.

        Raises:
            EnvFailure: the program crashed; the episode is retried.
        """
        ...


def open_program(loop: str) -> Program:
    """The program that a setting names: a function or a command line.

    Raises:
        ValueError: the setting names neither.
    """
    if is_reference(loop):
        return FunctionProgram(loop, load_function(loop, KEY))
    words = shlex.split(loop)
    if not words:
        raise ValueError(
            f"{KEY} ({loop!r}) must name your agent's loop: file.py:function, "
            f"package.module:function, or a command"
        )
    if shutil.which(words[0]) is None:
        raise ValueError(
            f"{KEY} ({loop}): there is no program {words[0]!r}; a function is named "
            f"file.py:function or package.module:function"
        )
    return CommandProgram(words)


class FunctionProgram:
    """Plays episodes by a function ``play(task, base_url)``, with ``seed=`` if it takes one.

    An ``async`` function runs on an event loop in a thread that all such functions share. A plain
    function runs in a new thread for each episode. Neither can block the event loop of the
    endpoint.

    Args:
        name: name of the function, for error messages.
        function: returns the reward, or None if it posts the reward.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function
        self._takes_seed = takes(function, "seed")

    async def play(self, task: Any, base_url: str, seed: int) -> float | None:
        """Call the function; see :meth:`Program.play`."""
        seeds = {"seed": seed} if self._takes_seed else {}
        # A copy: a loop that changes its task must not affect the other members of the group.
        call = functools.partial(self._function, copy.deepcopy(task), base_url, **seeds)
        try:
            plain = not inspect.iscoroutinefunction(self._function)
            returned = await (in_thread(call) if plain else _thread.run(call))
        # User code may raise any of these; only our own cancellation must pass.
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            running = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and running and running.cancelling():
                raise
            what = f"{self.name} raised {type(error).__name__}: {error}"
            raise EnvFailure(what, retryable=True) from error
        if returned is not None and type(returned) not in (int, float):
            what = f"{self.name} returned {returned!r}: it must return a number, or None"
            raise EnvFailure(what, retryable=False)
        return returned  # type: ignore[no-any-return]


class CommandProgram:
    """Plays episodes by a command, which is started for each one.

    The command's environment has ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL``
    (without ``/v1``), ``ANTHROPIC_API_KEY`` and ``EPISODE_SEED``; its standard input has the task
    as JSON. The command posts the reward and exits with 0. At the end of the episode, the command's
    process group is killed.

    Args:
        words: the words of the command line.
    """

    def __init__(self, words: list[str]) -> None:
        self.name, self._words = shlex.join(words), words

    async def play(self, task: Any, base_url: str, seed: int) -> float | None:
        """Run the command, which posts its reward; see :meth:`Program.play`."""
        given = {
            **{"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"},
            **{"ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "none"},
            "EPISODE_SEED": str(seed),
        }
        # Files instead of pipes: a process that outlives the command would keep a pipe open.
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
            try:
                asked.write(json.dumps(task).encode())
            except (TypeError, ValueError) as error:
                raise EnvFailure(f"a task is not JSON: {error}", retryable=False) from error
            asked.seek(0)
            try:
                code = await self._run(asked, said, {**os.environ, **given})
            except OSError as error:
                raise EnvFailure(f"{self.name} cannot be run: {error}", retryable=True) from error
            if code != 0:
                said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
                words = said.read().decode(errors="replace").strip()
                what = f"{self.name} exited with {code}: {words or 'it said nothing'}"
                raise EnvFailure(what, retryable=True)
        return None

    async def _run(self, asked: IO[bytes], said: IO[bytes], environment: dict[str, str]) -> int:
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *self._words,
                stdin=asked,
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
            return await process.wait()
        finally:
            # The episode may be cancelled before asyncio returns the process that it started.
            process = await starting
            # The process group is gone if all of its processes have ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class _AgentThread:
    """The event loop of all ``async`` functions, on a daemon thread that starts on first use.

    The process has one such loop, because a module's client is bound to its first event loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run ``call()`` on the thread's loop. Cancelling this call cancels the coroutine."""

        async def outcome() -> Any:
            try:
                return await call()
            # These would end the event loop, and all callers would wait forever.
            except (SystemExit, KeyboardInterrupt) as error:
                raise RuntimeError(f"the loop left by {error!r}") from error

        future = asyncio.run_coroutine_threadsafe(outcome(), self._started())
        return await asyncio.wrap_future(future)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="turnwise-agents", daemon=True
                ).start()
            return self._loop


_thread = _AgentThread()

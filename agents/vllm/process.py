"""A vLLM server that this process starts, watches over and ends, with all that belongs to it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agents.vllm.arguments import ONE_PROCESS, StartConfig, as_words
from agents.vllm.guard import KILL_S, Guard, group_exists, kill_group
from agents.vllm.replica import Replica

logger = logging.getLogger(__name__)
_GATE = 'read -r go && exec "$@" </dev/null'
"""Begins a server when it is told to: by then it is guarded. Untold, it ends."""

NOT_THERE = "No module named 'vllm'"
"""What an interpreter without vLLM says."""


class ServerGone(Exception):
    """Raised when a server ended before it was ready, or cannot be started."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(StartConfig):
    """How a server is started."""

    python: str = sys.executable
    """The interpreter that vLLM is installed for."""
    arguments: tuple[str, ...] = ()
    """Further words for vLLM's command line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its own; the others it has from this process, but for PYTHONPATH."""


class ServerProcess:
    """A server on a free port of this machine, in a process group of its own.

    Killed with everything it started: vLLM's engine outlives a killed front end otherwise, with its
    memory, and leaves shared memory that nobody else would remove. Where this process is killed, a
    :class:`Guard` does that.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._guard: Guard | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether its front end is there."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it; it listens some ten seconds later.

        Raises:
            ServerGone: the interpreter is not there.
        """
        python = self.config.python
        if shutil.which(python) is None:
            raise ServerGone(f"vLLM cannot be started by {python}: there is no such program")
        self._stopping = None
        self.port = _free_port()
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"}
        # Connections are closed by those who ask, never under a request that is being sent.
        environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "600"
        if self.config.transfer == "ipc":
            # Handles of a GPU's memory are pickled.
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if self.config.lora_rank:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        # Ours would be read by another interpreter.
        environment.pop("PYTHONPATH", None)
        environment |= self.config.environment
        if self.config.cpu:
            environment["OMP_NUM_THREADS"] = str(self.config.threads)
            # Else a small function of the sampler is compiled for half a minute at the first token.
            environment["TORCH_COMPILE_DISABLE"] = "1"
        log = self.config.log
        try:
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
            with (log or Path(os.devnull)).open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", _GATE, "vllm", *command_line(self.config, self.port)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            self._guard = Guard(group=self._process.pid)
        except OSError as error:
            raise ServerGone(f"vLLM cannot be started by {python}: {error}") from error
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    def instance(self, session: aiohttp.ClientSession, *, short_s: float, load_s: float) -> Replica:
        """The server, as it is asked."""
        return Replica(self.url, session, short_s=short_s, load_s=load_s)

    async def ended(self) -> None:
        """Return when its front end is gone."""
        if self._process is not None:
            await self._process.wait()

    def last_words(self) -> str:
        """The last error that it told, in one line, and where the rest is."""
        log, python = self.config.log, self.config.python
        missing = (
            f"it is not installed for {python}: pip install '.[vllm]', or say policy.python=... "
            f"for an interpreter that has it"
        )
        if python == sys.executable and importlib.util.find_spec("vllm") is None:
            return missing
        if log is None or not log.is_file():
            return "what it said was not kept: rl.eval keeps it with out=FOLDER"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        told = ([line for line in lines if "rror" in line] or lines or ["nothing"])[-1].strip()
        return f"{missing if NOT_THERE in told else told} (all of it: {log})"

    async def stop(self) -> None:
        """Kill it and everything it started, and remove the shared memory that it left.

        Done to its end whoever is cancelled meanwhile: another call waits for the same.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        if process is None:
            return
        group = process.pid
        if guard is not None and not await asyncio.to_thread(guard.finish):
            logger.warning("the guard of the vLLM server %d is gone: see /dev/shm", group)
        kill_group(group)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_S)
        loop = asyncio.get_running_loop()
        end = loop.time() + KILL_S
        while group_exists(group):
            if loop.time() > end:
                logger.warning("processes of the vLLM server %d do not end", group)
                break
            await asyncio.sleep(0.02)


def command_line(config: ServerConfig, port: int) -> list[str]:
    """The words that start a server whose log-probabilities are those it sampled by."""
    words = [config.python, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "turnwise"]
    words += ["--enable-scale-out", "--disable-uvicorn-access-log"]
    words += as_words(config.core_arguments())
    if config.cpu:
        words += ["--distributed-executor-backend", ONE_PROCESS]
    return [*words, *config.arguments]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

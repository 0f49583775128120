"""A server that this process starts, monitors and ends, with all processes that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import aiohttp

from agents.serving.client import EngineClient
from agents.serving.errors import ServerGone
from agents.serving.orphans import KILL_S, Guard, group_exists, kill_group

logger = logging.getLogger(__name__)
_GATE = 'read -r go && exec "$@" </dev/null'
"""Shell command that waits for a line and then starts the server. The line is written when the
guard runs. If the input ends without a line, the command exits."""


class ServerProcess(ABC):
    """A server on a free port of this machine, in its own process group.

    Processes and shared memory of an engine can outlive its front end. The server is therefore
    killed together with everything that it started. If this process is killed, a :class:`Guard`
    does the same.

    Args:
        log: a file for the server's output, or None to drop the output.
    """

    engine: ClassVar[str] = "server"
    """Name used in logs and errors."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log
        self.host = "127.0.0.1"
        """The address at which the server listens."""
        self.port = 0
        """The port of the most recent start."""
        self.keeps_port = False
        """Whether a server that is started again listens at the same port."""
        self._process: asyncio.subprocess.Process | None = None
        self._guard: Guard | None = None
        self._stopping: asyncio.Task[None] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line of a server that listens at ``self.host`` and ``self.port``."""

    @abstractmethod
    def client(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> EngineClient:
        """A client of the server at ``self.url``; see :class:`~agents.serving.EngineRunner`."""

    def variables(self) -> Mapping[str, str]:
        """Environment variables of the server, besides those of this process."""
        return {}

    def explain(self, error: str) -> str | None:
        """A better explanation of the log's last error line, or None to show the line unchanged."""
        return None

    @property
    def url(self) -> str:
        """The URL at which the server listens."""
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server's first process is alive."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the server, without waiting until it listens.

        Raises:
            ServerGone: the program does not exist, or the process cannot be started.
        """
        if not (self.keeps_port and self.port):
            self.port = free_port(self.host)
        command = self.command()
        program = command[0]
        if shutil.which(program) is None:
            raise ServerGone(
                f"{self.engine} cannot be started by {program}: there is no such program"
            )
        self._stopping = None
        # PYTHONPATH is this interpreter's; the server may run in another one.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        try:
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
            with (self.log or Path(os.devnull)).open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", _GATE, self.engine, *command),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment | dict(self.variables()),
                    start_new_session=True,
                )
            self._guard = Guard(group=self._process.pid)
        except OSError as error:
            raise ServerGone(f"{self.engine} cannot be started by {program}: {error}") from error
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    async def ended(self) -> None:
        """Wait until the server's first process has ended."""
        if self._process is not None:
            await self._process.wait()

    def last_words(self) -> str:
        """The last error in the log, in one line, and the path of the log."""
        if self.log is None or not self.log.is_file():
            return self.explain("") or "its output was not kept: rl.eval keeps it with out=FOLDER"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        last = (errors or lines or ["no output"])[-1].strip()
        return f"{self.explain(last) or last} (all of it: {self.log})"

    async def stop(self) -> None:
        """Kill the server and everything that it started, and remove their shared memory.

        The cleanup finishes even if the caller is cancelled. Another call waits for it.
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
            logger.warning(
                "the guard of the %s server %d is gone: see /dev/shm", self.engine, group
            )
        kill_group(group)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_S)
        loop = asyncio.get_running_loop()
        end = loop.time() + KILL_S
        while group_exists(group):
            if loop.time() > end:
                logger.warning("processes of the %s server %d do not end", self.engine, group)
                break
            await asyncio.sleep(0.02)


def free_port(host: str) -> int:
    """A port of this machine's address ``host`` at which nothing listens now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port

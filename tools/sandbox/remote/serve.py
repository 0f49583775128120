"""``python -m tools.sandbox serve``: serves this machine's sandbox to trainers elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import signal
import sys
from pathlib import Path

from tools.sandbox.backends.launcher import LEVELS
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.host.queue import MAX_WAITING
from tools.sandbox.limits import Limits
from tools.sandbox.make import BACKENDS, local_sandbox
from tools.sandbox.remote.wire import TOKEN_VARIABLE
from tools.sandbox.sandbox import Sandbox

PORT = 8700
MIN_TOKEN = 16
_SHUTDOWN_S = 0.2
"""Seconds that a request can continue after SIGTERM or SIGINT."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``serve``."""
    limits = Limits()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="0: any free one (%(default)s)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, help="file with the token that clients send")
    token.add_argument(
        "--token-env",
        default=TOKEN_VARIABLE,
        help="environment variable with the token (%(default)s); without a token only "
        "loopback addresses are served",
    )
    parser.add_argument("--backend", default="auto", choices=["auto", *BACKENDS])
    parser.add_argument("--min-isolation", choices=LEVELS, help="weakest to accept")
    parser.add_argument("--workers", type=int, help="runs at once (twice the number of cores)")
    parser.add_argument("--max-sessions", type=int, default=64, help="open at once (%(default)s)")
    parser.add_argument(
        "--max-client-sessions",
        type=int,
        help="open at once by one client's address (three quarters of --max-sessions)",
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=MAX_WAITING,
        help="most waiting requests, three quarters of them of one client; further ones get 429 "
        "and retry (%(default)s)",
    )
    parser.add_argument("--memory-mb", type=int, default=limits.memory_mb, help="of a run at most")
    parser.add_argument("--processes", type=int, default=limits.processes, help="of a run at most")
    parser.add_argument("--disk-mb", type=int, default=limits.disk_mb, help="of a run")


def token_of(arguments: argparse.Namespace) -> str | None:
    """The token that clients must send, or None if none is set.

    Raises:
        ValueError: the file cannot be read, or the token is too short or not printable ASCII.
    """
    path: Path | None = arguments.token_file
    if path is None:
        where, text = arguments.token_env, os.environ.get(arguments.token_env)
        if text is None:
            return None
    else:
        try:
            where, text = f"--token-file {path}", path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--token-file {path} cannot be read: {error}") from None
    token = text.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise ValueError(
            f"{where} holds {len(token)} characters: a token has at least {MIN_TOKEN}, in one line "
            'of ASCII; `python -c "import secrets; print(secrets.token_urlsafe())"` makes one'
        )
    return token


def check_host(host: str, token: str | None) -> None:
    """Check that a token is set if other machines can reach ``host``.

    Raises:
        ValueError: other machines can reach ``host``, and no token is set.
    """
    if token is not None or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"--host {host} can be reached by other machines: set {TOKEN_VARIABLE} or pass "
            "--token-file"
        )


async def serve(arguments: argparse.Namespace) -> int:
    """Serve until a SIGTERM or SIGINT arrives, or until the sandbox cannot start a zygote any more.

    Returns:
        The exit code.

    Raises:
        OSError: the server cannot listen on the address.
        SandboxUnavailable: no sandbox works here.
        ValueError: an option is invalid.
    """
    token = token_of(arguments)
    check_host(arguments.host, token)
    limits = Limits(
        memory_mb=arguments.memory_mb, processes=arguments.processes, disk_mb=arguments.disk_mb
    )
    sandbox = local_sandbox(
        arguments.backend,
        limits,
        min_isolation=arguments.min_isolation,
        workers=arguments.workers,
        max_sessions=arguments.max_sessions,
        python=arguments.python,
    )
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with sandbox:
        return await _serve(sandbox, token, arguments, ending)


async def _serve(
    sandbox: Sandbox, token: str | None, arguments: argparse.Namespace, ending: asyncio.Event
) -> int:
    # Imported here because it loads aiohttp, which the other commands do not need.
    from aiohttp import web

    from tools.sandbox.remote.server import Server

    server = Server(sandbox, token, arguments.max_waiting, arguments.max_client_sessions)
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_S,
        access_log=None,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.port).start()
        host, port = runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(
            f"http://{shown}:{port} serves {sandbox.backend}, isolation {sandbox.isolation}, "
            f"{sandbox.workers} at once, {'with' if token else 'without'} a token\n"
        )
        sys.stdout.flush()
        assert runner.server is not None
        listening = runner.server
        watching = asyncio.create_task(server.watch(lambda: listening.connections))
        ended = [asyncio.create_task(event.wait()) for event in (ending, server.broken)]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        for task in (*ended, watching):
            task.cancel()
    finally:
        await runner.cleanup()
    if server.broken.is_set():
        sys.stderr.write("error: the sandbox does not start any more\n")
        return 1
    return 0


def command(arguments: argparse.Namespace) -> int:
    """Run ``serve``; report a user error in one line."""
    try:
        return asyncio.run(serve(arguments))
    except (ValueError, OSError, SandboxUnavailable) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2

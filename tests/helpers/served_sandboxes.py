"""Sandboxes behind real servers on loopback ports."""

from __future__ import annotations

import contextlib

from aiohttp import web

from tools.sandbox.remote.server import Server

TOKEN = "a-token-of-some-length"


@contextlib.asynccontextmanager
async def serving(sandbox, *, token=TOKEN, max_waiting=64, max_client_sessions=6, port=0):
    """A running server: yields its URL and the server."""
    server = Server(sandbox, token, max_waiting, max_client_sessions)
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", server
    finally:
        await runner.cleanup()

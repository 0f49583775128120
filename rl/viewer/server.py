"""The viewer's web server. It only reads, and answers only requests for this machine's names."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
import logging
import os
import platform
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from rl.errors import UsageError
from rl.viewer.api import ANSWERS, answer
from rl.viewer.runs import Runs

logger = logging.getLogger(__name__)
PAGE = Path(__file__).parent / "page"
"""The files of the web page."""
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: nothing from elsewhere, and no script or style inside the page."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_ANSWER_S = 120.0
"""Seconds within which an answer must be found."""
_CLOSE_S = 2.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(runs: Runs, host: str) -> web.Application:
    """The server's application.

    Args:
        runs: the runs to show.
        host: the name or address at which the server listens; requests may use it.
    """

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not is_local(request.headers.get("Host", ""), host):
            text = "this name is not one of this machine: use localhost or an address\n"
            return web.Response(status=403, text=text, headers=_HEADERS)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=_HEADERS)

    async def reply(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in ANSWERS:
            raise web.HTTPNotFound
        try:
            async with asyncio.timeout(_ANSWER_S):
                body = await asyncio.to_thread(answer, runs, name, dict(request.query))
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=404, headers=_HEADERS)
        return _tagged(request, body.encode(), "application/json")

    async def page(request: web.Request) -> web.StreamResponse:
        file = _files().get(request.match_info.get("file", "index.html"))
        if file is None:
            raise web.HTTPNotFound
        return _tagged(request, file.read_bytes(), _TYPES[file.suffix])

    made = web.Application(middlewares=[guard])
    made.add_routes(
        [web.get("/", page), web.get("/page/{file}", page), web.get("/api/{name}", reply)]
    )
    return made


def is_local(header: str, host: str) -> bool:
    """Whether a Host header cannot come from another site's name (DNS rebinding).

    Addresses, ``localhost``, this machine's name and ``host`` are accepted with every port, so that
    a forwarded port works.
    """
    try:
        name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name in ("localhost", host.lower(), platform.node().lower()) and name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".localhost")
    return True


async def serve(runs: Runs, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until the task is cancelled. ``ready`` is called with the address.

    Raises:
        UsageError: the address is not available.
    """
    runner = web.AppRunner(application(runs, host), access_log=None, shutdown_timeout=_CLOSE_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UsageError(_unavailable(host, port, error)) from error
        found = runner.addresses[0]
        name = f"[{found[0]}]" if ":" in found[0] else found[0]
        ready(f"http://{name}:{found[1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _unavailable(host: str, port: int, error: OSError) -> str:
    """The message about an address at which the server cannot listen."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port={port} is in use, perhaps by another viewer: open http://{host}:{port}/, or "
            "choose another port (port=0 for a free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port={port} needs more rights: choose a port from 1024 to 65535"
    reason = "no such name" if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    return f"host={host} is no address of this machine ({reason}): leave it out, or give 0.0.0.0"


def _files() -> dict[str, Path]:
    return {path.name: path for path in PAGE.iterdir() if path.suffix in _TYPES}


def _tagged(request: web.Request, body: bytes, kind: str) -> web.Response:
    """The response with an ETag, or 304 if the browser has the body already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = _HEADERS | {"ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
    if len(body) > 2000:
        response.enable_compression()
    return response

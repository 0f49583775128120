"""Serves a retriever over HTTP, in all three wire formats at the same time.

The server can replace Search-R1's server (``/retrieve``), ReSearch's (``/batch_search``,
``/search``, ``/health``) and R1-Searcher's (``/queries``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from tools.retrieval.passage import Retriever
from tools.retrieval.wire import RE_SEARCH, WIRES, Wire, check_request
from tools.tool import ToolFailure

MOST_BYTES = 16 * 2**20
"""Maximum size of a request in bytes."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(retriever: Retriever, default_k: int | None = None) -> web.Application:
    """Make a web application that serves a retriever.

    Args:
        retriever: the retriever, which the caller opens and closes.
        default_k: number of passages per query for requests that do not state a number. If None,
            the default of each wire format's original server.
    """
    app = web.Application(client_max_size=MOST_BYTES)
    for wire in WIRES.values():
        app.router.add_post(wire.path, partial(_answer, retriever, wire, default_k))
    app.router.add_post("/search", partial(_answer_one, retriever, default_k))
    app.router.add_get("/health", _health)
    return app


@asynccontextmanager
async def serving(
    retriever: Retriever, host: str = "127.0.0.1", port: int = 0, default_k: int | None = None
) -> AsyncIterator[str]:
    """Serve a retriever while the context lasts. Yields the address, ``http://host:port``.

    Args:
        retriever: the retriever to serve.
        host: the address at which to listen.
        port: the port, or 0 for a free one.
        default_k: see :func:`make_app`.

    Raises:
        OSError: the address is taken.
    """
    runner = web.AppRunner(make_app(retriever, default_k), access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _answer(
    retriever: Retriever, wire: Wire, default_k: int | None, request: web.Request
) -> web.Response:
    try:
        body = await _body(request)
        queries, k = check_request(wire, body, default_k)
    except ValueError as error:
        return _refusal(str(error), 400)
    try:
        found = await retriever.search(queries, k)
    except ToolFailure as error:
        return _refusal(str(error), 503)
    return web.json_response(wire.answer(body, found))


async def _answer_one(
    retriever: Retriever, default_k: int | None, request: web.Request
) -> web.Response:
    """Answer ReSearch's ``/search``: a request has one query, and the response one list."""
    try:
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("query"), str):
            raise ValueError("expected a body such as {'query': '...', 'top_n': 3}")
        queries, k = check_request(RE_SEARCH, body | {"query": [body["query"]]}, default_k)
    except ValueError as error:
        return _refusal(str(error), 400)
    try:
        found = await retriever.search(queries, k)
    except ToolFailure as error:
        return _refusal(str(error), 503)
    answer = RE_SEARCH.answer(body, found)
    return web.json_response(
        [part[0] for part in answer] if body.get("return_score") else answer[0]
    )


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON ({error})") from error


def _refusal(detail: str, status: int) -> web.Response:
    return web.json_response({"detail": detail}, status=status)

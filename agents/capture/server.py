"""A web server on this machine, with a base URL for each episode.

The URL ``http://127.0.0.1:PORT/e/TOKEN/v1`` identifies the episode, because every SDK accepts a
base URL, while keys and headers differ between SDKs. The token cannot be guessed, so a program
reaches only its own episode. Besides OpenAI's ``chat/completions`` and ``models``, there is
``reward``, which ends the episode::

    POST {base_url}/reward   {"reward": 1.0}
    POST {base_url}/reward   {"reward": {"right": 1.0, "format": 0.1}, "scores": {"f1": 0.8}}
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from aiohttp import web

from agents.capture.episode import CapturedEpisode
from agents.capture.errors import ApiError, bad_request
from agents.capture.record import Capture
from agents.capture.request import read_request
from agents.capture.wire import chunks, completion_body

logger = logging.getLogger(__name__)
_MAX_BODY = 1 << 26
"""Maximum size of a request in bytes. Each request contains the whole history."""
_BODY_S = 60.0
"""Seconds within which a request's body must arrive."""
_SEND_S = 60.0
"""Seconds within which a client must receive a response."""
_CLOSE_S = 5.0
"""Seconds that closing waits for clients."""
MODEL = "policy"
"""Name of the model in the list of ``models``. Requests can use any other name."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CaptureServer:
    """Serves episodes to agents on this machine. An asynchronous context manager.

    One server serves any number of concurrent episodes, each with its own policy, on the event loop
    in which it was entered. ``open`` returns an episode's URL, and ``close`` ends the episode.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self._port = host, port
        self._episodes: dict[str, CapturedEpisode] = {}
        self._running: dict[str, set[asyncio.Task[Any]]] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[_guard], client_max_size=_MAX_BODY)
        application.add_routes(
            [
                web.post("/e/{token}/v1/chat/completions", self._complete),
                web.get("/e/{token}/v1/models", self._models),
                web.post("/e/{token}/v1/reward", self._reward),
                web.route("*", "/{path:.*}", _nowhere),
            ]
        )
        # If a client disconnects while its answer is sampled, the request is cancelled.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_S
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._runner is not None
        for token in [*self._episodes]:
            await self._drop(token)
        await self._runner.cleanup()

    @property
    def address(self) -> str:
        """The server's URL without a path."""
        assert self._runner is not None, "enter the server first"
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    def open(self, episode: CapturedEpisode) -> str:
        """Serve an episode and return its base URL."""
        token = secrets.token_urlsafe(16)
        self._episodes[token], self._running[token] = episode, set()
        return f"{self.address}/e/{token}/v1"

    async def close(self, base_url: str) -> Capture:
        """Stop serving an episode, cancel its requests, and return the recorded episode."""
        return (await self._drop(base_url.split("/")[-2])).captured()

    async def _drop(self, token: str) -> CapturedEpisode:
        episode = self._episodes.pop(token)
        episode.closed = True
        running = self._running.pop(token)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_S)
        return episode

    def _episode(self, request: web.Request) -> CapturedEpisode:
        episode = self._episodes.get(request.match_info["token"])
        if episode is None:
            raise ApiError(404, "no episode has this URL, or it has ended", code="episode_over")
        return episode

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        episode, task = self._episode(http), asyncio.current_task()
        running = self._running[http.match_info["token"]]
        assert task is not None
        running.add(task)
        try:
            request = read_request(await _json(http))
            answer = await episode.answer(request)
        finally:
            running.discard(task)
        if not request.stream:
            return web.json_response(completion_body(request, answer))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with asyncio.timeout(_SEND_S):
            await response.prepare(http)
            for chunk in chunks(request, answer):
                await response.write(chunk)
            await response.write_eof()
        return response

    async def _models(self, http: web.Request) -> web.StreamResponse:
        self._episode(http)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
        return web.json_response({"object": "list", "data": [model]})

    async def _reward(self, http: web.Request) -> web.StreamResponse:
        episode, body = self._episode(http), await _json(http)
        if not isinstance(body, dict) or "reward" not in body or body.keys() - {"reward", "scores"}:
            raise ApiError(400, 'the body must be {"reward": number, "scores": {name: number}}')
        given = body["reward"]
        rewards = given if isinstance(given, dict) else {"reward": given}
        scores = body.get("scores") or {}
        episode.settle(_numbers("reward", rewards), _numbers("scores", scores))
        return web.json_response({"reward": sum((episode.rewards or {}).values())})


@web.middleware
async def _guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Return all errors in OpenAI's format, including the server's own."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status, headers=error.headers)
    except web.HTTPException as error:
        refused = ApiError(error.status, error.reason)
        return web.json_response(refused.body(), status=error.status, headers=refused.headers)
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        broken = ApiError(500, "the proxy failed: its log says why", "server_error")
        return web.json_response(broken.body(), status=500, headers=broken.headers)


async def _nowhere(http: web.Request) -> web.StreamResponse:
    raise ApiError(
        404,
        f"{http.method} {http.path.rpartition('/v1')[2]}: there are chat/completions, models "
        "and reward, below a base URL that ends in /v1",
        code="not_found",
    )


async def _json(http: web.Request) -> Any:
    async with asyncio.timeout(_BODY_S):
        text = await http.text()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error


def _numbers(kind: str, values: object) -> Mapping[str, float]:
    if not isinstance(values, dict) or not all(type(v) in (int, float) for v in values.values()):
        raise bad_request(kind, f"({values!r}) must be numbers by name")
    return {str(name): float(value) for name, value in values.items()}

"""A web server on this machine, with a base URL for each episode.

The URL ``http://127.0.0.1:PORT/e/TOKEN/v1`` identifies the episode, because every SDK accepts a
base URL, while keys and headers differ between SDKs. The token cannot be guessed, so a program
reaches only its own episode. There are OpenAI's ``chat/completions``, ``responses`` and ``models``,
and Anthropic's ``messages``, whose SDKs take the base URL without ``/v1``. ``reward`` ends the
episode::

    POST {base_url}/reward   {"reward": 1.0}
    POST {base_url}/reward   {"reward": {"right": 1.0, "format": 0.1}, "scores": {"f1": 0.8}}
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from agents.capture.anthropic_messages import (
    error_body,
    message_body,
    message_events,
    read_messages_request,
)
from agents.capture.episode import Answer, CapturedEpisode
from agents.capture.errors import ApiError, bad_request
from agents.capture.record import Capture
from agents.capture.request import ChatRequest, read_request
from agents.capture.responses_request import ResponseStore, read_responses_request
from agents.capture.responses_wire import failed_events, response_body, response_events
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


@dataclass
class _Served:
    """An episode, and the requests to it."""

    episode: CapturedEpisode
    running: set[asyncio.Task[Any]] = field(default_factory=set)
    stored: ResponseStore = field(default_factory=ResponseStore)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[CapturedEpisode]:
        """Closing the episode cancels the task while the context lasts."""
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            yield self.episode
        finally:
            self.running.discard(task)


class CaptureServer:
    """Serves episodes to agents on this machine. An asynchronous context manager.

    One server serves any number of concurrent episodes, each with its own policy, on the event loop
    in which it was entered. ``open`` returns an episode's URL, and ``close`` ends the episode.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self._port = host, port
        self._served: dict[str, _Served] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[_guard], client_max_size=_MAX_BODY)
        application.add_routes(
            [
                web.post("/e/{token}/v1/chat/completions", self._complete),
                web.post("/e/{token}/v1/messages", self._message),
                web.post("/e/{token}/v1/messages/count_tokens", self._count_message),
                web.post("/e/{token}/v1/responses", self._respond),
                web.post("/e/{token}/v1/responses/input_tokens", self._count_response),
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
        for token in [*self._served]:
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
        self._served[token] = _Served(episode)
        return f"{self.address}/e/{token}/v1"

    async def close(self, base_url: str) -> Capture:
        """Stop serving an episode, cancel its requests, and return the recorded episode."""
        return (await self._drop(base_url.split("/")[-2])).captured()

    async def _drop(self, token: str) -> CapturedEpisode:
        served = self._served.pop(token)
        served.episode.closed = True
        running = {*served.running}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLOSE_S)
        return served.episode

    def _at(self, http: web.Request) -> _Served:
        served = self._served.get(http.match_info["token"])
        if served is None:
            raise ApiError(404, "no episode has this URL, or it has ended", code="episode_over")
        return served

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        async with self._at(http).request() as episode:
            request = read_request(await _json(http))
            answers = await _answers(episode, request)
        if not request.stream:
            return web.json_response(completion_body(request, answers))
        return await _stream(http, chunks(request, answers))

    async def _message(self, http: web.Request) -> web.StreamResponse:
        async with self._at(http).request() as episode:
            request = read_messages_request(await _json(http))
            answer = await episode.answer(request)
        if not request.stream:
            return web.json_response(message_body(request, answer))
        return await _stream(http, message_events(request, answer))

    async def _count_message(self, http: web.Request) -> web.StreamResponse:
        async with self._at(http).request() as episode:
            request = read_messages_request(await _json(http), counting=True)
            return web.json_response({"input_tokens": episode.count_tokens(request)})

    async def _respond(self, http: web.Request) -> web.StreamResponse:
        served = self._at(http)
        async with served.request() as episode:
            body = await _json(http)
            items = served.stored.items(body)
            request = read_responses_request(body, items)
            try:
                answer = await episode.answer(request)
            except ApiError as error:
                if request.stream and error.code == "context_length_exceeded":
                    return await _stream(http, failed_events(body, request, error))
                raise
        response = response_body(body, request, answer)
        served.stored.keep(response, items)
        if not request.stream:
            return web.json_response(response)
        return await _stream(http, response_events(response))

    async def _count_response(self, http: web.Request) -> web.StreamResponse:
        served = self._at(http)
        async with served.request() as episode:
            body = await _json(http)
            request = read_responses_request(body, served.stored.items(body))
            counted = episode.count_tokens(request)
        return web.json_response({"object": "response.input_tokens", "input_tokens": counted})

    async def _models(self, http: web.Request) -> web.StreamResponse:
        self._at(http)
        # OpenAI's fields and Anthropic's; each SDK reads its own.
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "turnwise"}
        model |= {"type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
        page = {"has_more": False, "first_id": MODEL, "last_id": MODEL}
        return web.json_response({"object": "list", "data": [model], **page})

    async def _reward(self, http: web.Request) -> web.StreamResponse:
        episode, body = self._at(http).episode, await _json(http)
        if not isinstance(body, dict) or "reward" not in body or body.keys() - {"reward", "scores"}:
            raise ApiError(400, 'the body must be {"reward": number, "scores": {name: number}}')
        given = body["reward"]
        rewards = given if isinstance(given, dict) else {"reward": given}
        scores = body.get("scores") or {}
        episode.settle(_numbers("reward", rewards), _numbers("scores", scores))
        return web.json_response({"reward": sum((episode.rewards or {}).values())})


async def _answers(episode: CapturedEpisode, request: ChatRequest) -> list[Answer]:
    """The ``request.n`` answers. If one fails, all do."""
    if request.n == 1:
        return [await episode.answer(request)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(episode.answer(request)) for _ in range(request.n)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _stream(http: web.Request, events: Iterable[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    async with asyncio.timeout(_SEND_S):
        await response.prepare(http)
        for event in events:
            await response.write(event)
        await response.write_eof()
    return response


@web.middleware
async def _guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Return all errors in the format of the request's API, including the server's own."""
    try:
        return await handler(request)
    except ApiError as error:
        refused = error
    except web.HTTPException as error:
        refused = ApiError(error.status, error.reason)
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        refused = ApiError(500, "the proxy failed: its log says why", "server_error")
    anthropic = "/v1/messages" in request.path or "anthropic-version" in request.headers
    body = error_body(refused) if anthropic else refused.body()
    return web.json_response(body, status=refused.status, headers=refused.headers)


async def _nowhere(http: web.Request) -> web.StreamResponse:
    raise ApiError(
        404,
        f"{http.method} {http.path.rpartition('/v1')[2]}: there are chat/completions, "
        "responses, messages, models and reward, below a base URL that ends in /v1",
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

"""Large responses of servers are parsed beside the event loop, small ones on it."""

from __future__ import annotations

import json
import threading

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agents.serving import http
from agents.serving.errors import Unreachable


async def answered(text: str) -> object:
    """What a server's response of ``text`` becomes."""

    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/", respond)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        return await http.call(session, "GET", str(server.make_url("/")), 60.0)


@pytest.fixture
def threads(monkeypatch):
    """The threads that parsed a large response."""
    found, plain = [], http._parsed

    def parsed(text: str) -> object:
        found.append(threading.current_thread())
        return plain(text)

    monkeypatch.setattr(http, "_parsed", parsed)
    return found


@pytest.mark.parametrize("count", [1, 40_000])
async def test_a_large_response_is_parsed_in_another_thread(count, threads):
    answer = {"ids": [151_935, -1] * count, "logprobs": [{"logprob": -0.1, "bytes": None}], "": {}}
    assert await answered(json.dumps(answer)) == answer
    assert [thread is not threading.current_thread() for thread in threads] == [True] * (count > 1)


async def test_a_large_response_that_is_no_json_is_refused_like_a_small_one(threads):
    with pytest.raises(Unreachable, match="answered no JSON: aaa"):
        await answered("a" * 2**19)
    assert len(threads) == 1

"""Which endpoint a server has is told by its status, not by its words."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agents.vllm.replica import Replica


@pytest.mark.parametrize(("has_it", "expected"), [(True, "generate"), (False, "completions")])
async def test_the_endpoint_is_found(has_it, expected):
    async def models(request):
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def generate(request):
        message = {"error": {"message": "port 40404 asked for no token ids"}}
        return web.json_response(message, status=400)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    if has_it:
        app.router.add_post("/inference/v1/generate", generate)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        replica = Replica(str(server.make_url("")), session, short_s=5, load_s=5)
        await replica.describe()
    assert (replica.model, replica.context_window, replica.path) == ("m", 64, expected)

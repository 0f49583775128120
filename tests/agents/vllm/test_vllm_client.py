"""The client of a server, against scripted servers."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agents.completion import SamplingParams
from agents.serving.errors import Refused
from agents.serving.sampling.server import open_session
from agents.vllm.client import VLLMClient
from agents.vllm.engine import Engine
from agents.vllm.protocol import completion_of
from agents.vllm.sampling import Expected


@pytest.mark.parametrize(("has_it", "expected"), [(True, "generate"), (False, "completions")])
async def test_the_endpoint_is_detected(has_it, expected):
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
        client = VLLMClient(str(server.make_url("")), session, short_s=5, load_s=5)
        await client.describe()
    assert (client.model, client.context_window, client.endpoint) == ("m", 64, expected)
    assert client.vllm_version == "unknown"


@pytest.mark.parametrize(("scheduling", "expected"), [("priority", -3), ("fcfs", None)])
async def test_requests_have_priorities_if_the_server_schedules_by_them(scheduling, expected):
    asked = []

    async def models(request):
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def generate(request):
        asked.append(await request.json())
        return web.json_response({"error": {"message": "no"}}, status=400)

    async def server_info(request):
        scheduler = {"max_num_seqs": 7, "policy": scheduling}
        return web.json_response({"vllm_config": {"scheduler_config": scheduler}})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/server_info", server_info)
    app.router.add_post("/inference/v1/generate", generate)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = VLLMClient(str(server.make_url("")), session, short_s=5, load_s=5)
        await client.describe()
        about = {"request_id": "a", "version": 1, "priority": -3, "deadline_s": 5}
        with pytest.raises(Refused, match="no"):
            await client.generate([1], SamplingParams(max_tokens=1), **about)
    assert client.max_num_seqs == 7
    assert asked[-1].get("priority") == expected


async def test_an_idle_connection_is_not_reused():
    seen = []

    async def models(request):
        seen.append(request.transport.get_extra_info("peername"))
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    # Between rollouts a learner learns for seconds, and vLLM closes what is idle for five.
    async with TestServer(app) as server, open_session() as session:
        for pause_s in (0.0, 0.0, 2.5):
            await asyncio.sleep(pause_s)
            async with session.get(server.make_url("/v1/models")) as answer:
                await answer.read()
    assert seen[0] == seen[1], "a rollout's requests share connections"
    assert seen[2] != seen[1]


async def test_a_server_interrupted_during_an_update_must_be_restarted():
    message = "start_weight_update called while a weight update is already active."

    async def start(request):
        return web.json_response({"error": {"message": message}}, status=500)

    app = web.Application()
    app.router.add_post("/start_weight_update", start)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = VLLMClient(str(server.make_url("")), session, short_s=5, load_s=5)
        with pytest.raises(Refused, match="interrupted in the middle of an update: restart it"):
            await client.transfer("start_weight_update", {})


async def test_a_server_that_reports_supports_gets_no_request_without_top_k():
    async with aiohttp.ClientSession() as session:
        client = VLLMClient("http://127.0.0.1:9", session, short_s=5, load_s=5)
        client.reports_support = True
        about = {"request_id": "a", "version": 1, "priority": 0, "deadline_s": 5}
        with pytest.raises(Refused, match=r"set sampling\.top_k and eval\.top_k, or start it"):
            await client.generate([1], SamplingParams(max_tokens=1), **about)


async def test_supports_are_read_beside_the_event_loop(monkeypatch):
    threads = []

    def read(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return completion_of(*arguments)

    async def generate(request):
        entries = [{"logprob": -0.5}, {"logprob": -1.0}]
        choice = {"token_ids": [5, 6], "logprobs": {"content": entries}, "finish_reason": "length"}
        choice["weight_versions"] = [{"version": "1", "start": 0, "end": 2}]
        choice["sampling_mask"] = [[5, 7], [6, 8]]
        return web.json_response({"choices": [choice]})

    monkeypatch.setattr("agents.vllm.client.completion_of", read)
    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    about = {"request_id": "a", "version": 1, "priority": 0, "deadline_s": 5}
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        client = VLLMClient(str(server.make_url("")), session, short_s=5, load_s=5)
        client.context_window = 64
        whole = await client.generate([1], SamplingParams(max_tokens=2), **about)
        limited = await client.generate([1], SamplingParams(max_tokens=2, top_k=2), **about)
    assert (whole.supports, limited.supports) == (None, ([5, 7], [6, 8]))
    assert threads == [True, False]


@pytest.mark.parametrize("top_k", [0, 2])
async def test_an_engines_supports_are_read_beside_the_event_loop(top_k):
    threads = []

    class Choice(SimpleNamespace):
        @property
        def token_ids(self):
            threads.append(threading.current_thread() is threading.main_thread())
            return [5]

    choice = Choice(
        logprobs=[{5: SimpleNamespace(logprob=-0.5)}],
        weight_versions=[SimpleNamespace(version="1", start=0, end=1)],
        finish_reason="length",
        stop_reason=None,
        sampling_mask=SimpleNamespace(token_ids=[[5, 7]]),
    )
    engine = Engine(lambda: None, short_s=5, load_s=5)
    expected = Expected.of([1], SamplingParams(max_tokens=1, top_k=top_k), 64, 1)
    made = await engine._completion(SimpleNamespace(outputs=[choice]), expected)
    assert made.supports == (([5, 7],) if top_k else None)
    assert threads == [not top_k]

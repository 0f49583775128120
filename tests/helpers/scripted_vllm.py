"""A scripted vLLM server: real HTTP routes; its weights are a number, which it also samples."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from agents.serving import ManagedServer, Timeouts, WeightsDiffer
from agents.serving.client import EngineRunner
from agents.serving.probe import Proof
from agents.vllm import VLLMClient, VLLMServerPolicy

BASE = 99
"""The weights of a server that was just started."""
POISON = 666
"""A prompt that begins with it is answered by 500."""


class ScriptedServer:
    """Answers as vLLM does; the sampled token identifies the current weights."""

    def __init__(self, endpoint: str, *, max_num_seqs: int = 1, seconds: float = 0.1) -> None:
        self.endpoint = endpoint
        self.max_num_seqs = max_num_seqs
        self.seconds = seconds
        self.weights, self.label = BASE, "default"
        self.metrics = ""
        """What /metrics says; empty: that it gets on."""
        self.raw: bytes | None = None
        """What it answers once instead."""
        self.asked: list[list[int]] = []
        self.calls: list[str] = []
        """The calls that change weights or memory, in order."""
        self.sleepless = False
        """Whether it fails to sleep."""
        self.running = 0
        self._looks = 0
        self._seats = asyncio.Semaphore(max_num_seqs)
        self.goes = asyncio.Event()
        self.goes.set()

    def restart(self) -> None:
        """Restart the server, as its owner does."""
        self.weights, self.label = BASE, "default"

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/collective_rpc", self._load)
        app.router.add_post("/update_weight_version", self._label)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake)
        paths = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}
        app.router.add_post(paths[self.endpoint], self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 64}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.1"})

    async def _info(self, request: web.Request) -> web.Response:
        scheduler = {"max_num_seqs": self.max_num_seqs, "policy": "fcfs"}
        return web.json_response({"vllm_config": {"scheduler_config": scheduler}})

    async def _metrics(self, request: web.Request) -> web.Response:
        self._looks += 1
        return web.Response(
            text=self.metrics or f"vllm:generation_tokens_total{{}} {self._looks}\n"
        )

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _pause(self, request: web.Request) -> web.Response:
        self.goes.clear()
        self.calls.append(f"pause clear_cache={request.query['clear_cache']}")
        # vLLM waits for those that it computes; those in its queue stay there.
        while request.query["mode"] == "wait" and self.running:
            await asyncio.sleep(0.005)
        return web.json_response({})

    async def _load(self, request: web.Request) -> web.Response:
        self.weights = int(Path((await request.json())["kwargs"]["weights_path"]).name)
        self.calls.append("load")
        return web.json_response({})

    async def _label(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return web.json_response({})

    async def _resume(self, request: web.Request) -> web.Response:
        self.goes.set()
        self.calls.append("resume")
        return web.json_response({})

    async def _sleep(self, request: web.Request) -> web.Response:
        self.calls.append(f"sleep level={request.query['level']}")
        if self.sleepless:
            return web.json_response({"error": {"message": "no room on the host"}}, status=500)
        self.goes.clear()
        return web.json_response({"status": "sleeping"})

    async def _wake(self, request: web.Request) -> web.Response:
        self.calls.append(f"wake {request.query['tags']}")
        return web.json_response({"status": "awake"})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body.get("token_ids", body.get("prompt"))
        if not prompt:
            return web.json_response({"error": {"message": "no tokens"}}, status=400)
        self.asked.append(prompt)
        if self.raw is not None:
            raw, self.raw = self.raw, None
            return web.Response(body=raw, content_type="application/json")
        if prompt[0] == POISON:
            return web.json_response({"error": {"message": "poison"}}, status=500)
        async with self._seats:
            await self.goes.wait()
            self.running += 1
            try:
                await asyncio.sleep(self.seconds)
            finally:
                self.running -= 1
        choice = {"token_ids": [self.weights], "finish_reason": "length", "stop_reason": None}
        if self.endpoint == "generate":
            spans = [{"version": self.label, "start": 0, "end": 1}]
            choice |= {"logprobs": {"content": [{"logprob": -1.0}]}, "weight_versions": spans}
        else:
            choice |= {"logprobs": {"token_logprobs": [-1.0]}}
        return web.json_response({"choices": [choice]})


class NumberedFolders:
    """Transfer that sends only the number of a version."""

    def write(self, weights: object, version: int) -> Path:
        return Path(f"/nowhere/{version}")

    def close(self) -> None: ...


class NumberProber:
    """Prober that checks which version a scripted server has."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server

    async def expect(self, version: int, digests: object = None) -> None: ...

    async def prove(
        self, client: object, version: int, *, sampled: bool = True, loaded: object = None
    ) -> Proof:
        if self._server.weights != version:
            raise WeightsDiffer("it has others", retryable=False)
        return Proof(version, 0.0)


async def opened(
    script: ScriptedServer,
    server: TestServer,
    *,
    stall_s: float = 60.0,
    sleeps: bool = False,
    runner: EngineRunner | None = None,
) -> VLLMServerPolicy:
    """A policy on a scripted server, which ``runner`` starts if given, with the weights 1."""
    prober = NumberProber(script)
    reach = (
        {"runner": runner}
        if runner is not None
        else {"connect": VLLMClient.at(str(server.make_url("")))}
    )
    managed = ManagedServer(prober, **reach, start_s=5, load_s=5, short_s=2)
    policy = VLLMServerPolicy(
        [managed],
        NumberedFolders(),
        prober,
        context_window=64,
        timeouts=Timeouts(request_s=30.0, stall_s=stall_s),
        sleeps=sleeps,
    )
    await policy.open()
    await policy.load_weights({}, 1)
    return policy

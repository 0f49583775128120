"""A policy engine of a user's own: a small HTTP server, and a client of it.

The client and the server's process implement the contracts of ``agents.serving``; everything else
comes from there. Run as a program, this file is the server: MODEL PORT.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from agents.completion import Completion, FinishReason, SamplingParams
from agents.serving import (
    ManagedServer,
    Refused,
    ServerPolicy,
    ServerProcess,
    Unreachable,
    copier,
)
from rl.policies.serving import ServerEngine


class ToyClient:
    """See ``agents.serving.EngineClient``."""

    endpoint = "toy"
    reports_versions = True
    max_num_seqs = None

    def __init__(self, url, session, *, short_s, load_s):
        self.url, self._session = url, session
        self._short_s, self._load_s = short_s, load_s
        self.context_window, self.num_running = 0, 0

    def copied(self):
        return copier(self, "_session")

    async def describe(self):
        self.context_window = (await self._call("describe", self._short_s))["context_window"]

    async def generate(self, prompt_ids, sampling, *, request_id, version, priority, deadline_s):
        self.num_running += 1
        try:
            values = dataclasses.asdict(sampling)
            answer = await self._call("generate", deadline_s, prompt=prompt_ids, sampling=values)
        finally:
            self.num_running -= 1
        tokens, logprobs, versions = map(tuple, answer["tokens"])
        return Completion(tokens, logprobs, versions, FinishReason(answer["finish_reason"]))

    async def probe(self, prompt_ids, sampling, version):
        read = await self._call("score", self._load_s, prompt=prompt_ids)
        how = {"request_id": "probe", "version": version, "priority": 0}
        return read["logprobs"], await self.generate(
            prompt_ids, sampling, **how, deadline_s=self._load_s
        )

    async def load(self, weights, version):
        await self._call("load", self._load_s, folder=str(weights), version=version)

    async def num_tokens(self):
        return (await self._call("num_tokens", self._short_s))["num_tokens"]

    async def _call(self, verb, deadline_s, **arguments):
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        try:
            async with self._session.post(
                f"{self.url}/{verb}", json=arguments, timeout=timeout
            ) as response:
                if response.status >= 500:
                    raise Unreachable(f"{self.url}/{verb}: {await response.text()}")
                if response.status >= 400:
                    raise Refused(f"{self.url}/{verb}: {await response.text()}", response.status)
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self.url}/{verb}: {type(error).__name__}: {error}") from error


class ToyProcess(ServerProcess):
    """Starts the server."""

    engine = "toy"

    def __init__(self, model, log=None, environment=()):
        super().__init__(log)
        self.model, self.environment = model, dict(environment)

    def command(self):
        return [sys.executable, __file__, str(self.model), str(self.port)]

    def variables(self):
        # The server imports the checkout's packages.
        return {"PYTHONPATH": str(Path(__file__).parents[2])} | self.environment

    def client(self, session, *, short_s, load_s):
        return ToyClient(self.url, session, short_s=short_s, load_s=load_s)


class ToyPolicy(ServerPolicy):
    """Samples from the server."""

    engine = "toy"


@dataclass(frozen=True, kw_only=True)
class Toy(ServerEngine):
    """A small HTTP server that samples with transformers."""

    admits_guests = True

    servers: int = 1
    """Number of servers."""

    async def open(self, context):
        prober = await self.prober(context)
        servers = [
            ManagedServer(
                prober,
                runner=ToyProcess(context.spec.model, context.logs and context.logs / f"toy-{n}"),
                start_s=self.start_s,
                load_s=self.load_s,
            )
            for n in range(self.servers)
        ]
        policy = ToyPolicy(
            servers,
            self.publisher(context),
            prober,
            context_window=context.context_window,
            timeouts=self.timeouts(context.config),
        )
        await self.start(policy, context)
        return policy


class ToyServer:
    """Samples with a local policy on weights of its own."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from agents.local import LocalPolicy

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.policy = LocalPolicy(self.model, tokenizer, shares_weights=False)
        self.num_tokens = 0

    def app(self):
        app = web.Application()
        for verb in ("describe", "generate", "score", "load", "count"):
            path = "num_tokens" if verb == "count" else verb
            app.router.add_post(f"/{path}", getattr(self, verb))
        return app

    async def describe(self, request):
        return web.json_response({"context_window": self.model.config.max_position_embeddings})

    async def generate(self, request):
        body = await request.json()
        values = body["sampling"]
        lists = {name: tuple(values[name]) for name in ("stop", "stop_token_ids")}
        made = await self.policy.generate(body["prompt"], SamplingParams(**values | lists))
        self.num_tokens += len(made.token_ids)
        tokens = [made.token_ids, made.logprobs, made.versions]
        return web.json_response({"tokens": tokens, "finish_reason": made.finish_reason})

    async def score(self, request):
        import torch

        ids = torch.tensor((await request.json())["prompt"])
        with torch.no_grad():
            logprobs = self.model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        scores = logprobs.gather(1, ids[1:, None])[:, 0].tolist()
        return web.json_response({"logprobs": scores})

    async def load(self, request):
        from safetensors.torch import load_file

        body = await request.json()
        weights = load_file(Path(body["folder"]) / "model.safetensors")
        await self.policy.load_weights(weights, body["version"])
        return web.json_response({})

    async def count(self, request):
        return web.json_response({"num_tokens": self.num_tokens})


def main(folder, port):
    import torch

    torch.set_num_threads(1)

    async def serve():
        server = ToyServer(folder)
        runner = web.AppRunner(server.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port)).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A scripted vLLM server whose tokens depend on prompt and seed, for many turns."""

from __future__ import annotations

import asyncio
import json
import random

from aiohttp import web
from scripted_vllm import POISON, ScriptedServer

WINDOW = 512


class SeededServer(ScriptedServer):
    """Samples like a model: equal prompts with equal seeds have equal completions."""

    def __init__(self, vocab_size: int, end_id: int, **settings) -> None:
        super().__init__("generate", **{"max_num_seqs": 64, "seconds": 0.0} | settings)
        self.vocab_size, self.end_id = vocab_size, end_id
        self.most_running = 0
        self.fails = 0
        """Number of requests that it answers with 500 next."""

    async def _models(self, request):
        return web.json_response({"data": [{"id": "m", "max_model_len": WINDOW}]})

    async def _generate(self, request):
        body = await request.json()
        prompt = body["token_ids"]
        if not prompt:
            return web.json_response({"error": {"message": "no tokens"}}, status=400)
        if self.fails or prompt[0] == POISON:
            self.fails -= 1
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        await self.goes.wait()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        sampling = body["sampling_params"]
        drawn = random.Random(json.dumps([prompt, sampling["seed"], self.weights]))
        count = drawn.randint(1, sampling["max_tokens"])
        tokens = [drawn.randrange(2, self.vocab_size) for _ in range(count)]
        choice = {"finish_reason": "length", "stop_reason": None}
        if count < sampling["max_tokens"]:
            tokens[-1] = self.end_id
            choice = {"finish_reason": "stop", "stop_reason": self.end_id}
        choice |= {
            "token_ids": tokens,
            "logprobs": {"content": [{"logprob": -drawn.random()} for _ in tokens]},
            "weight_versions": [{"version": self.label, "start": 0, "end": count}],
        }
        return web.json_response({"choices": [choice]})

"""Time to give new weights to one server and to four.

    python -m benchmarks.serving.sync_receivers [--megabytes 400] [--rounds 9]

The learner writes each version once, and all servers read the same file at the same time. Receivers
stand for servers: each is a process that speaks vLLM's protocol, copies the file's tensors into
memory of its own, and answers the probe. With one receiver and with four, in turn, each round
publishes new weights through ``VLLMServerPolicy``. Four receivers copy four times as many bytes, on
the cores of this machine, where a server's GPU would copy by itself; ``--wait S`` makes a receiver
wait instead of copy. Writes ``results/sync_receivers.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from aiohttp import web
from safetensors import safe_open

from agents.completion import SamplingParams
from agents.serving import ManagedServer, Prober, WeightFolders
from agents.vllm import VLLMClient, VLLMServerPolicy
from rl.run.folder import versions

RESULTS = Path(__file__).parents[1] / "results" / "sync_receivers.json"
COUNTS = (1, 4)
WINDOW = 256
LOGPROB = -1.0
"""The score of every token, by receivers and learner."""


class Receiver:
    """Speaks vLLM's protocol.

    Args:
        wait_s: seconds for which it waits instead of copying the weights; 0 to copy them.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._label = "default"
        self._memory: dict[str, torch.Tensor] = {}

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        about = {"data": [{"id": "m", "max_model_len": WINDOW}]}
        scheduler = {"scheduler_config": {"max_num_seqs": 64, "policy": "fcfs"}}
        for path, answer in {
            "/v1/models": about,
            "/version": {"version": "0.32.0"},
            "/server_info": {"vllm_config": scheduler},
        }.items():
            app.router.add_get(path, _always(answer))
        for path in ("/pause", "/resume"):
            app.router.add_post(path, _always({}))
        app.router.add_post("/collective_rpc", self._load)
        app.router.add_post("/update_weight_version", self._name)
        app.router.add_post("/inference/v1/generate", self._generate)
        return app

    async def _load(self, request: web.Request) -> web.Response:
        folder = Path((await request.json())["kwargs"]["weights_path"])
        await asyncio.to_thread(self._copy, folder / "model.safetensors")
        return web.json_response({"results": [None]})

    def _copy(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            for name in names:
                tensor = file.get_tensor(name)
                if not self._wait_s:
                    self._memory.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    async def _name(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self._wait_s)
        self._label = (await request.json())["new_version"]
        return web.json_response({})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not (prompt := body["token_ids"]):
            return web.json_response({"error": {"message": "no tokens"}}, status=400)
        count = body["sampling_params"]["max_tokens"]
        choice = {
            "token_ids": [5] * count,
            "finish_reason": "length",
            "stop_reason": None,
            "logprobs": {"content": [{"logprob": LOGPROB}] * count},
            "weight_versions": [{"version": self._label, "start": 0, "end": count}],
        }
        rows = [None, *({str(token): {"logprob": LOGPROB}} for token in prompt[1:])]
        return web.json_response({"choices": [choice], "prompt_logprobs": rows})


def _always(answer: Mapping[str, Any]) -> Any:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(answer)

    return handle


def serve(port: Connection, wait_s: float) -> None:
    """Be a receiver, and send its port."""
    torch.set_num_threads(1)

    async def run() -> None:
        runner = web.AppRunner(Receiver(wait_s).app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def score(
    token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]] = ()
) -> list[float]:
    return [LOGPROB] * (len(token_ids) - 1)


async def measure(options: argparse.Namespace) -> dict[int, list[dict[str, float]]]:
    """The metrics of each update, by number of receivers."""
    context = multiprocessing.get_context("spawn")
    found: dict[int, list[dict[str, float]]] = {count: [] for count in COUNTS}
    policies, processes = {}, []
    for count in COUNTS:
        urls = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            processes.append(
                context.Process(target=serve, args=(theirs, options.wait), daemon=True)
            )
            processes[-1].start()
            urls.append(f"http://127.0.0.1:{await asyncio.to_thread(ours.recv)}")
        prober = Prober(score, 64, sampling=SamplingParams(), tolerance=1e-4)
        servers = [ManagedServer(prober, connect=VLLMClient.at(url)) for url in urls]
        policies[count] = VLLMServerPolicy(servers, WeightFolders(), prober, context_window=WINDOW)
        await policies[count].open()
    size = options.megabytes * 2**20 // 4 // 100
    weights = {f"layer.{i}.weight": torch.randn(size) for i in range(100)}
    try:
        for version in range(options.rounds + 1):
            for count, policy in policies.items():
                await policy.load_weights(weights, version)
                if version:  # The first allocates memory.
                    found[count].append(policy.take_metrics())
    finally:
        for policy in policies.values():
            await policy.close()
        for process in processes:
            process.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds instead of a copy")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    row: dict[str, Any] = {"megabytes": options.megabytes, "wait": options.wait}
    for key in ("sync/seconds", "sync/write_s", "sync/load_s"):
        one, four = ([metrics[key] for metrics in found[count]] for count in COUNTS)
        ratios = [b / a for a, b in zip(one, four, strict=True)]
        row[key] = {"one": median(one), "four": median(four), "ratio": median(ratios)}
        row[key]["best"] = min(four) / min(one)
    sys.stdout.write(json.dumps(row) + "\n")
    former = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    kept = [r for r in former if (r["megabytes"], r["wait"]) != (row["megabytes"], row["wait"])]
    record = {"runs": [*kept, row], "cores": os.cpu_count(), **versions()}
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

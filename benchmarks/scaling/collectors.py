"""Processor time of the run's process for a turn, with and without collectors.

    python -m benchmarks.scaling.collectors

A scripted server, in a process of its own, answers vLLM's requests with 64 tokens each without
computing anything. One process plays groups of 8 episodes of 4 turns, then 2 and 4 collectors play
the same ones; the ways alternate. ``own`` is the processor time of the run's process for a turn,
``collector`` that of all collectors together, and ``turns_per_second`` how many turns the run's
process can account for if it does nothing else. Collectors on a machine with few cores share them,
so that the wall-clock time says little here. Writes ``results/collectors.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from aiohttp import web

from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.serving import ManagedServer
from agents.serving.probe import Proof
from agents.vllm import VLLMClient, VLLMServerPolicy
from rl.cluster.cluster import THIS_MACHINE
from rl.collectors.collector import RemoteCollector
from rl.collectors.opening import spec_of
from rl.collectors.pool import CollectorPool, PoolSettings
from rl.data.conversations import Conversation, Exchange
from rl.rollout.collector import Collector
from rl.run.folder import versions
from rl.run.process.activity import Activities
from rl.runtime.playing import Playing
from rl.runtime.tiny import train_tokenizer
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

HOME = Path(__file__).parents[2]
RESULTS = HOME / "benchmarks" / "results" / "collectors.json"
ENV = HOME / "benchmarks" / "serving" / "rollout_vllm.py"
TURNS, SAMPLED, GROUP, WINDOW, SEQS = 4, 64, 8, 2048, 1024
TICKS = os.sysconf("SC_CLK_TCK")


def serve(port: int) -> None:
    """Answer as vLLM does, always with the same tokens."""
    choice: dict[str, Any] = {"token_ids": list(range(2, 2 + SAMPLED)), "finish_reason": "length"}
    choice |= {"stop_reason": None, "logprobs": {"content": [{"logprob": -1.0}] * SAMPLED}}
    choice |= {"weight_versions": [{"version": "1", "start": 0, "end": SAMPLED}]}
    answers = {
        "/v1/models": {"data": [{"id": "m", "max_model_len": WINDOW}]},
        "/version": {"version": "0.32.1"},
        "/server_info": {"vllm_config": {"scheduler_config": {"max_num_seqs": SEQS, "policy": ""}}},
        "/weight_info": {"weight_version": "1"},
        "/inference/v1/generate": {"choices": [choice]},
    }
    pages = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path == "/metrics":
            return web.Response(text=f"vllm:generation_tokens_total{{}} {time.monotonic()}\n")
        return web.Response(body=pages.get(request.path, b"{}"), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


class _Nothing:
    """Publishes and proves nothing: the server has no weights."""

    def write(self, weights: object, version: int) -> Path:
        """A folder that does not exist."""
        return Path(f"/nowhere/{version}")

    def close(self) -> None:
        """Nothing was published."""

    async def expect(self, version: int, digests: object = None) -> None:
        """Expect nothing."""

    async def prove(
        self, client: object, version: int, *, sampled: bool = True, loaded: object = None
    ) -> Proof:
        """Every server is right."""
        return Proof(0, 0.0)


@contextlib.asynccontextmanager
async def served(port: int) -> AsyncIterator[VLLMServerPolicy]:
    """A policy of the scripted server."""
    command = [sys.executable, "-m", "benchmarks.scaling.collectors", "--serve", str(port)]
    process = subprocess.Popen(command, cwd=HOME)
    nothing: Any = _Nothing()
    server = ManagedServer(nothing, connect=VLLMClient.at(f"http://127.0.0.1:{port}"))
    policy = VLLMServerPolicy([server], nothing, nothing, context_window=WINDOW)
    try:
        await policy.open()
        await policy.load_weights({}, 1)
        yield policy
    finally:
        await policy.close()
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.asynccontextmanager
async def collector_of(
    policy: VLLMServerPolicy, renderer: Renderer, size: int, folder: Path
) -> AsyncIterator[tuple[Collector, list[int]]]:
    """A collector of this process (size 1) or of others, and the others' process ids."""
    words = [f"env={ENV}:TalkEnv", f"env.max_turns={TURNS}", "policy=vllm-server", "model=m"]
    words += [f"collectors={size}"]
    config = parse(TrainConfig, words, command="train", presets={})
    playing = Playing(
        config=config,
        services={},
        policy=policy,
        renderer=renderer,
        partners={},
        activities=Activities(),
        context_window=WINDOW,
    )
    context = playing.context("train", SamplingParams(max_tokens=SAMPLED))
    if size == 1:
        yield Collector(context), []
        return

    common = spec_of(config, policy, renderer.tokenizer, renderer.end_token_ids, WINDOW)
    settings = PoolSettings(
        size=size,
        start=THIS_MACHINE.start_collector,
        spec=lambda number: replace(common, number=number),
        printed=folder,
        counts_together=False,
    )
    pool = CollectorPool(settings, policy)
    try:
        await pool.open()
        yield RemoteCollector(context, None, pool), pool.pids
    finally:
        await pool.close()


async def measure(sizes: Sequence[int], groups: int, rounds: int, port: int) -> dict[str, Any]:
    """Milliseconds of processors for a turn, by number of collectors; the medians of the rounds."""
    renderer = Renderer(train_tokenizer([Conversation((Exchange("task 1: a b", "a b"),))], 270))
    taken: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    turns = groups * GROUP * TURNS
    with tempfile.TemporaryDirectory() as folder:
        async with served(port) as policy, contextlib.AsyncExitStack() as stack:
            ways = {}
            for size in sizes:
                opened = collector_of(policy, renderer, size, Path(folder))
                ways[size] = await stack.enter_async_context(opened)
            for number in range(rounds + 1):
                for size, (collector, pids) in ways.items():
                    others = sum(map(cpu_s, pids))
                    own, began = time.process_time(), time.perf_counter()
                    await collector.collect(range(groups), GROUP, (number, size))
                    seconds = time.perf_counter() - began
                    own = time.process_time() - own
                    if number:  # The first round fills caches.
                        taken[size].append((own, sum(map(cpu_s, pids)) - others, seconds))
    return {
        str(size): {
            "own, ms a turn": 1e3 * median(own for own, _, _ in all_of) / turns,
            "collectors, ms a turn": 1e3 * median(others for _, others, _ in all_of) / turns,
            "own, ms an episode": 1e3 * median(own for own, _, _ in all_of) * TURNS / turns,
            "turns_per_second": turns / median(own for own, _, _ in all_of),
            "seconds": median(seconds for _, _, seconds in all_of),
        }
        for size, all_of in taken.items()
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=int, default=0, help="be the server, at this port")
    given = parser.parse_args()
    if given.serve:
        return serve(given.serve)
    results = asyncio.run(measure((1, 2, 4), given.groups, given.rounds, 8731))
    about = {"groups": given.groups, "group": GROUP, "turns": TURNS, "sampled": SAMPLED}
    record = {**versions(), **about, "cores": os.cpu_count(), "collectors": results}
    sys.stdout.write(json.dumps(record, indent=2) + "\n")
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()

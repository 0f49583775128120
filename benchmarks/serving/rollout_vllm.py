"""Throughput of rollouts with a vLLM server, compared with a minimal client of the same server.

    python -m benchmarks.serving.rollout_vllm --python /path/to/vllm/bin/python

A collector plays episodes of several turns with ``policy=vllm-server``; the environment waits
before each turn. Then a plain aiohttp client sends the same prompts to the same server: all first
turns at once, each later turn after the previous answer and the same wait. The client requests the
same number of tokens with the same seeds. Both alternate, each with its own prefix cache.

The figures are sampled tokens per second over the whole collection, and CPU seconds of client and
server together, which depend less on other load; where the CPU is the limit, throughput is their
inverse. ``lean`` is the client without seeds and without log-probabilities, which shows the cost of
both in the server. The server counts the hits of the prefix cache: cached tokens as a share of the
full blocks that earlier turns left there. Writes ``results/rollout_vllm.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import torch

import envs
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.serving import ManagedServer, Prober, WeightFolders
from agents.vllm import ServerConfig, VLLMServerPolicy, VLLMServerProcess
from agents.vllm.protocol import ENDPOINTS, request_body
from agents.vllm.sampling import sampling_parameters
from benchmarks.serving.weight_sync import make_model
from rl.data.conversations import Conversation, Exchange
from rl.learner.model import score_tokens
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.episode import seed_of
from rl.rollout.trajectory import Trajectory
from rl.run.folder import versions
from rl.runtime.tiny import train_tokenizer

RESULTS = Path(__file__).parents[1] / "results" / "rollout_vllm.json"
WINDOW = 2048
BLOCK = 32
MAX_NUM_SEQS = 64
TURNS, SAMPLED, FIRST, LATER = 4, 64, 300, 96
"""Turns of an episode, tokens sampled in each at most, characters of its observations."""
MEAN_WAIT_S = 0.05
CACHE_BYTES = 2**30


class TalkEnv(envs.TextEnv[int, tuple[int, int]]):
    """Says something else for each task and turn, after a wait that is drawn exponentially."""

    def __init__(self, options: envs.EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, range(1_000_000), services)

    def begin(self, task: int) -> str:
        """The task's own text."""
        self.state = (task, 0)
        return words_of(task, 0)

    async def turn(self, action: envs.Action) -> envs.Reply:
        """A wait, and the next text."""
        task, turn = self.state
        await asyncio.sleep(wait_s(task, turn))
        self.state = (task, turn + 1)
        return envs.go_on(words_of(task, turn + 1))


@cache
def words_of(task: int, turn: int) -> str:
    """Letters that no other task's text begins with."""
    drawn = random.Random(f"{task}/{turn}")
    return "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz ", k=LATER if turn else FIRST))


@cache
def wait_s(task: int, turn: int) -> float:
    """Seconds that the environment takes to answer a turn."""
    return random.Random(f"{task}:{turn}").expovariate(1 / MEAN_WAIT_S)


@dataclass(frozen=True)
class Call:
    """One request of an episode."""

    prompt: list[int]
    num_sampled: int
    seed: int
    wait_s: float
    """Seconds of the environment after the answer."""


@dataclass(frozen=True)
class Measure:
    """Measurements of one repetition."""

    tokens_per_s: float
    cpu_s: float
    """Processor seconds of this process."""
    server_cpu_s: float
    """Processor seconds of the server's processes."""
    found: float
    """Prompt tokens that the prefix cache held."""


def calls_of(trajectory: Trajectory, seed_key: tuple[int, ...]) -> list[Call]:
    """The requests of an episode."""
    segment = trajectory.segments[0]
    calls = []
    for turn, taken in enumerate(trajectory.turns):
        first = segment.turn_ids.index(turn)
        begins = first + segment.loss_mask[first:].index(1)
        # As the episode's own: with the same seeds the same tokens are sampled and found again.
        seed = seed_of(*seed_key, trajectory.member, turn)
        prompt, wait = segment.token_ids[:begins], wait_s(trajectory.task, turn)
        calls.append(Call(prompt, taken.num_tokens, seed, wait))
    return calls


def reusable(episodes: Sequence[Sequence[Call]]) -> int:
    """Tokens of later turns' prompts that stand in blocks which the turn before them filled.

    The last sampled token is not computed before it is read in the next prompt.
    """
    return sum(
        (len(before.prompt) + before.num_sampled - 1) // BLOCK * BLOCK
        for calls in episodes
        for before in calls[:-1]
    )


class Bench:
    """A server, by the process that leads its group, and both of its clients."""

    def __init__(
        self, policy: VLLMServerPolicy, model: Any, renderer: Renderer, server: int
    ) -> None:
        self.server = server
        self.policy = policy
        self.model = model
        self.renderer = renderer
        self.repetition = 0

    @property
    def url(self) -> str:
        """The URL at which the server listens."""
        url: str = self.policy.facts()["urls"][0]  # type: ignore[index]
        return url

    async def rollout(
        self, episodes: int, profile: cProfile.Profile | None
    ) -> tuple[Measure, list[list[Call]]]:
        """One collection, under a version of its own; and what it asked for."""
        self.repetition += 1
        await self.policy.load_weights(self.model.state_dict(), self.repetition)
        collector = Collector(
            EpisodeContext(
                env_id="talk-v0",
                options=envs.EnvOptions(max_turns=TURNS),
                services={},
                policy=self.policy,
                renderer=self.renderer,
                sampling=SamplingParams(max_tokens=SAMPLED),
                limits=EpisodeLimits(context_length=WINDOW, max_failed=0.0),
            ),
        )
        for task in range(episodes):  # Not to be made while the clock runs.
            for turn in range(TURNS + 1):
                words_of(task, turn), wait_s(task, turn)
        found = await self._found()
        server_cpu = self._server_cpu_s()
        began, cpu = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        groups = await collector.collect(range(episodes), 1, (self.repetition,))
        if profile is not None:
            profile.disable()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        played = [trajectory for group in groups for trajectory in group.trajectories]
        sampled = sum(trajectory.num_sampled for trajectory in played)
        server_cpu_s = self._server_cpu_s() - server_cpu
        measure = Measure(sampled / seconds, cpu_s, server_cpu_s, await self._found() - found)
        key = self.repetition
        return measure, [calls_of(t, (key, position)) for position, t in enumerate(played)]

    async def bare(self, episodes: Sequence[Sequence[Call]], *, lean: bool = False) -> Measure:
        """The same requests by aiohttp alone."""
        self.repetition += 1
        salt = f"bare-{self.repetition}"
        found = await self._found()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            server_cpu = self._server_cpu_s()
            began, cpu = time.perf_counter(), time.process_time()

            async def play(number: int, calls: Sequence[Call]) -> None:
                for turn, call in enumerate(calls):
                    sampling = SamplingParams(
                        max_tokens=call.num_sampled, seed=None if lean else call.seed
                    )
                    body = request_body(
                        "generate",
                        "turnwise",
                        call.prompt,
                        sampling_parameters(sampling),
                        request_id=f"{salt}-{number}-{turn}",
                        salt=salt,
                    )
                    if lean:
                        body["sampling_params"]["logprobs"] = None
                    async with session.post(self.url + ENDPOINTS["generate"], json=body) as answer:
                        choice = json.loads(await answer.read())["choices"][0]
                    assert len(choice["token_ids"]) == call.num_sampled
                    await asyncio.sleep(call.wait_s)

            await asyncio.gather(*(play(n, calls) for n, calls in enumerate(episodes)))
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        sampled = sum(call.num_sampled for calls in episodes for call in calls)
        server_cpu_s = self._server_cpu_s() - server_cpu
        return Measure(sampled / seconds, cpu_s, server_cpu_s, await self._found() - found)

    def _server_cpu_s(self) -> float:
        """CPU seconds of the server's processes so far."""
        ticks = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.server:  # its process group
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def version(self) -> str:
        """Version of vLLM."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/version") as answer,
        ):
            return str((await answer.json())["version"])

    async def _found(self) -> float:
        """Prompt tokens that the server has found in its prefix cache so far."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        name = "vllm:prefix_cache_hits_total"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def compare(bench: Bench, episodes: int, rounds: int, profiling: bool) -> dict[str, Any]:
    """Run both clients alternately and return their figures."""
    profile = cProfile.Profile(time.process_time) if profiling else None
    figures: dict[str, list[float]] = {}

    def note(kind: str, measure: Measure, possible: int) -> None:
        figures.setdefault(f"{kind}, tokens/s", []).append(measure.tokens_per_s)
        figures.setdefault(f"{kind}, client CPU s", []).append(measure.cpu_s)
        figures.setdefault(f"{kind}, server CPU s", []).append(measure.server_cpu_s)
        figures.setdefault(f"{kind}, full blocks found", []).append(measure.found / possible)

    for number in range(rounds + 1):
        measure, asked = await bench.rollout(episodes, profile if number else None)
        possible = reusable(asked)
        bare = await bench.bare(asked)
        if not number:  # The first is warmer of caches.
            continue
        note("rollout", measure, possible)
        note("bare", bare, possible)
        if number == 1:
            note("lean", await bench.bare(asked, lean=True), possible)
        figures.setdefault("rollout / bare", []).append(measure.tokens_per_s / bare.tokens_per_s)
        spent = [m.cpu_s + m.server_cpu_s for m in (bare, measure)]
        figures.setdefault("CPU s, bare / rollout", []).append(spent[0] / spent[1])
        figures.setdefault("load of the machine", []).append(os.getloadavg()[0])
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    best = max(figures["rollout, tokens/s"]) / max(figures["bare, tokens/s"])
    return {
        "episodes": episodes,
        "rounds": rounds,
        "turns": TURNS,
        "prompt tokens": [
            min(len(c.prompt) for e in asked for c in e),
            max(len(c.prompt) for e in asked for c in e),
        ],
        "rollout / bare, best of each": round(best, 3),
        **{name: summary(values) for name, values in figures.items()},
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Summary of the repetitions."""
    return {
        "median": round(median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


async def measure(words: argparse.Namespace, log: Path) -> list[dict[str, Any]]:
    """Start a server and compare at each number of episodes."""
    model = make_model("tiny", WINDOW)

    async def score(
        token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]]
    ) -> Sequence[float]:
        return score_tokens(model, token_ids, temperature, supports)

    prober = Prober(
        score,
        model.config.vocab_size,
        sampling=SamplingParams(),
        tolerance=1e-4,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        texts = Conversation((Exchange("abc xyz", "It is 42, I think."),))
        tokenizer = train_tokenizer([texts], 261)
        tokenizer.save_pretrained(folder)
        config = ServerConfig(
            model=folder,
            context_window=WINDOW,
            dtype="float32",
            python=words.python,
            log=log,
            max_num_seqs=MAX_NUM_SEQS,
            arguments=("--kv-cache-memory-bytes", str(CACHE_BYTES)),
        )
        process = VLLMServerProcess(config)
        policy = VLLMServerPolicy(
            [ManagedServer(prober, runner=process)],
            WeightFolders(),
            prober,
            context_window=WINDOW,
        )
        try:
            await policy.open()
            bench = Bench(policy, model, Renderer(tokenizer), process._process.pid)  # type: ignore[union-attr]
            rows = []
            for episodes in words.episodes:
                row = await compare(bench, episodes, words.rounds, words.profile)
                rows.append({"vllm": await bench.version(), **row})
                print(json.dumps(rows[-1], indent=2), flush=True)
            return rows
        finally:
            await policy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--profile", action="store_true", help="print where the rollouts' time goes"
    )
    parser.add_argument("--log", type=Path, help="where the server's words are kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    words = parser.parse_args()
    torch.set_num_threads(1)
    envs.register("talk-v0", TalkEnv)
    with tempfile.TemporaryDirectory() as logs:
        rows = asyncio.run(measure(words, words.log or Path(logs) / "server.log"))
    result = {**versions(), "block size": BLOCK, "max_num_seqs": MAX_NUM_SEQS, "results": rows}
    words.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

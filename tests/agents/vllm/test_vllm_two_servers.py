"""Two real servers: episodes stay where their tokens are cached, and one may die."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import pytest
from tiny_served import WINDOW, new_model, nudge

from agents.completion import SamplingParams
from agents.serving import ManagedServer
from agents.vllm import VLLMServerProcess
from rl.learner.model import score_tokens

START_S = 420.0
PROMPT = 96
"""Tokens: three blocks of the prefix cache."""
NUM_EPISODES = 12


@pytest.fixture
async def policy(server_config, open_policy, tmp_path):
    """A policy on two servers of its own, each with a thread."""
    model, numbers = new_model(), itertools.count()

    def managed(prober):
        number = next(numbers)
        config = server_config(log=tmp_path / f"server-{number}.log")
        return ManagedServer(
            prober, runner=VLLMServerProcess(config), start_s=START_S, short_s=30.0
        )

    policy = await open_policy(model, managed, count=2)
    policy.model = model
    await policy.load_weights(model.state_dict(), 1)
    return policy


async def found(managed) -> float:
    """Prompt tokens that a server found in its prefix cache."""
    text = await managed.client._call("GET", "/metrics", 30, as_text=True)
    name = "vllm:prefix_cache_hits_total"
    return sum(float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(name))


async def play(policy, sampling):
    """Episodes of two turns: the prompts and completions of all."""
    sessions = [f"episode-{number}" for number in range(NUM_EPISODES)]
    policy.begin(sessions)

    async def turn(prompts):
        # In one order both times, as they alternate between the servers: none meets its own much
        # busier than the other, where it would move.
        asked = zip(prompts, sessions, strict=True)
        calls = (policy.generate(prompt, sampling, session) for prompt, session in asked)
        return list(zip(prompts, await asyncio.gather(*calls), strict=True))

    first = await turn([[number, *range(1, PROMPT)] for number in range(NUM_EPISODES)])
    second = await turn([[*prompt, *one.token_ids, 7, 8, 9] for prompt, one in first])
    for session in sessions:
        policy.end(session)
    return [*first, *second]


def far(model, prompt, completion) -> float:
    scored = score_tokens(model, [*prompt, *completion.token_ids], 1.0)[len(prompt) - 1 :]
    return max(abs(a - b) for a, b in zip(completion.logprobs, scored, strict=True))


async def test_two_servers_share_the_work_and_one_of_them_dies(policy):
    servers = policy._servers
    begun = [await managed.client.num_tokens() for managed in servers]
    sampling = SamplingParams(max_tokens=16, seed=3)
    await play(policy, sampling)
    # Both worked, and each second turn found the full blocks of its first: 96 + 15 tokens.
    work = [await m.client.num_tokens() - b for m, b in zip(servers, begun, strict=True)]
    assert min(work) > 0.3 * sum(work), work
    hits = [await found(managed) for managed in servers]
    assert sum(hits) == NUM_EPISODES * 96, hits

    # One is killed while both sample: what it had is asked of the other, with the same result.
    long = SamplingParams(max_tokens=WINDOW - PROMPT, seed=5)
    prompts = [[n, *range(1, PROMPT)] for n in range(32)]
    expected = await asyncio.gather(*(policy.generate(p, long) for p in prompts))
    calls = [asyncio.create_task(policy.generate(p, long)) for p in prompts]
    while min(managed.num_running for managed in servers) < 8:
        await asyncio.sleep(0.01)
    os.killpg(servers[1]._runner._process.pid, signal.SIGKILL)
    completions = await asyncio.wait_for(asyncio.gather(*calls), 120)
    assert [c.token_ids for c in completions] == [e.token_ids for e in expected]
    assert not servers[1].is_ready, "it is not back yet: the other one answered"

    # The weights change meanwhile; it is asked again when it is proved to run the newest.
    nudge(policy.model, 0.1)
    await policy.load_weights(policy.model.state_dict(), 2)
    assert all(managed.is_ready for managed in servers)
    metrics = policy.take_metrics()
    assert metrics["policy/restarts"] == 1
    assert metrics["policy/reissued"] >= 1
    begun = [await managed.client.num_tokens() for managed in servers]
    episodes = await play(policy, sampling)
    work = [await m.client.num_tokens() - b for m, b in zip(servers, begun, strict=True)]
    assert min(work) > 0.3 * sum(work), work
    for prompt, completion in episodes:
        assert set(completion.versions) == {2}
        assert far(policy.model, prompt, completion) < 1e-4

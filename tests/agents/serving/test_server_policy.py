"""The policy against a scripted server: versions, invalid responses, failing requests."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestServer
from scripted_vllm import POISON, ScriptedServer, opened

from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from rl.run.process.activity import Activities

ONE = SamplingParams(max_tokens=1, seed=1)


def asked(policy, *prompts: int) -> list[asyncio.Task]:
    return [asyncio.create_task(policy.generate([prompt], ONE)) for prompt in prompts]


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_tokens_are_labelled_by_the_weights_that_sampled_them(endpoint):
    script = ScriptedServer(endpoint)
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        assert policy.endpoint == endpoint
        calls = asked(policy, 1, 2, 3)
        await asyncio.sleep(0.05)
        update = asyncio.create_task(policy.load_weights({}, 2))
        await asyncio.sleep(0.02)
        calls += asked(policy, 4)
        await update
        for completion in await asyncio.gather(*calls):
            assert completion.versions == completion.token_ids
        assert (await policy.generate([5], ONE)).token_ids == (2,)
        await policy.close()


async def test_a_run_records_the_version_of_vllm():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        assert policy.facts() | {"urls": []} == {
            "policy": "vllm-server",
            "vllm": "0.32.1",
            "urls": [],
            "endpoint": "generate",
        }
        await policy.close()


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_a_server_restarted_by_its_owner_loads_the_weights_before_it_is_used(
    endpoint,
):
    script = ScriptedServer(endpoint)
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        script.restart()
        completion = await policy.generate([3], ONE)
        assert (completion.token_ids, completion.versions) == ((1,), (1,))
        assert policy.take_metrics()["policy/reissued"] == 1
        await policy.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"null",
        b'{"choices":[null]}',
        b'{"choices":[{"token_ids":[1],"logprobs":{"content":[{"logprob":null}]}}]}',
        b'{"choices":[{"token_ids":[1],"logprobs":{"content":[{}]}}]}',
        b"\xff\xfe{",
        b"no JSON",
    ],
    ids=["a list", "null", "no choice", "no number", "no logprob", "no text", "no JSON"],
)
async def test_a_request_with_a_malformed_response_is_retried(raw):
    script = ScriptedServer("generate", seconds=0.01)
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        script.raw = raw
        assert (await policy.generate([1], ONE)).token_ids == (1,)
        assert len(script.asked) == 2
        await policy.close()


async def test_a_request_that_always_fails_fails_alone():
    script = ScriptedServer("generate", max_num_seqs=8, seconds=0.3)
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        good = asked(policy, *range(1, 7))
        for _ in range(2):
            with pytest.raises(PolicyFailure, match="no completion after"):
                await policy.generate([POISON], ONE)
        assert [c.token_ids for c in await asyncio.wait_for(asyncio.gather(*good), 20)] == [
            (1,)
        ] * 6
        await policy.close()


async def test_a_line_of_metrics_that_says_nothing_does_not_end_the_watch():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        policy = await opened(script, server, stall_s=0.2)
        managed = policy._servers[0]
        script.goes.clear()
        script.metrics = "vllm:generation_tokens_total\n"
        (hangs,) = asked(policy, 1)
        await asyncio.sleep(0.3)
        script.metrics = "vllm:generation_tokens_total 7\n"
        async with asyncio.timeout(5):
            await managed._lost
        hangs.cancel()
        await policy.close()
        assert managed._session.closed


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_a_servers_seconds_are_accounted_for(endpoint):
    script = ScriptedServer(endpoint, seconds=0.1)
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        activities = Activities()
        policy.account(activities.lane)

        async def seconds(*work) -> dict[str, float]:
            activities.take()
            await asyncio.gather(*work)
            taken = activities.take()
            wall = taken.pop("time/wall")
            own = {key[12:]: s for key, s in taken.items() if key.startswith("time/vllm-0/")}
            assert sum(own.values()) == pytest.approx(wall, abs=1e-9)
            return {state: s for state, s in own.items() if s}

        alone = await seconds(*asked(policy, 1))
        assert set(alone) == {"idle", "generate"}
        assert alone["generate"] >= 0.1
        assert set(await seconds(policy.load_weights({}, 2))) == {"idle", "sync"}
        script.restart()
        assert set(await seconds(*asked(policy, 1))) == {"idle", "generate", "restart"}
        await policy.close()

"""Servers that share the learner's device: the order of sleeping, waking up and loading."""

from __future__ import annotations

import asyncio

from aiohttp.test_utils import TestServer
from scripted_vllm import ScriptedServer, opened

from agents.completion import SamplingParams
from agents.vllm import VLLMClient

ONE = SamplingParams(max_tokens=1, seed=1)
UPDATE = ["pause clear_cache=true", "load"]


class Runner:
    """Starts a scripted server, which runs all the time, and records starts and stops."""

    engine = "vLLM"

    def __init__(self, script: ScriptedServer, url: str) -> None:
        self._script, self._url = script, url
        self.running = False

    async def start(self) -> None:
        self._script.calls.append("start")
        self._script.restart()
        self._script.goes.set()
        self.running = True

    async def ended(self) -> None:
        await asyncio.Event().wait()

    def last_words(self) -> str:
        return ""

    def client(self, session, *, short_s, load_s):
        return VLLMClient(self._url, session, short_s=short_s, load_s=load_s)

    async def stop(self) -> None:
        if self.running:
            self._script.calls.append("stop")
        self.running = False


async def test_the_weights_wake_then_are_replaced_and_the_cache_wakes_last():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        policy = await opened(script, server, sleeps=True)
        script.calls.clear()
        await policy.sleep()
        assert policy.component_status() == {"vLLM 0": "asleep"}
        await policy.wake()
        asked = asyncio.create_task(policy.generate([1], ONE))
        await policy.load_weights({}, 2)
        # The pause drops cached prefixes of the old weights.
        woken = ["sleep level=1", "wake weights", *UPDATE, "wake kv_cache", "resume"]
        assert script.calls == woken
        assert (await asked).token_ids == (2,)
        script.calls.clear()
        await policy.load_weights({}, 3)
        assert script.calls == [*UPDATE, "resume"], "an engine that is awake is not woken"
        await policy.close()


async def test_a_policy_that_is_not_configured_to_sleep_stays_awake():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        policy = await opened(script, server)
        script.calls.clear()
        await policy.sleep()
        await policy.wake()
        assert script.calls == []
        await policy.close()


async def test_an_engine_that_cannot_sleep_is_stopped_until_the_learner_is_done():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        runner = Runner(script, str(server.make_url("")))
        policy = await opened(script, server, sleeps=True, runner=runner)
        script.calls.clear()
        script.sleepless = True
        await policy.sleep()
        assert script.calls == ["sleep level=1", "stop"], "the memory is free when sleep returns"
        await asyncio.sleep(0.2)
        assert "start" not in script.calls, "the learner has the memory"
        await policy.wake()
        await policy.load_weights({}, 2)
        assert script.calls[2] == "start"
        assert "wake kv_cache" not in script.calls, "a new engine is awake"
        assert (await policy.generate([1], ONE)).token_ids == (2,)
        assert policy.take_metrics()["policy/restarts"] == 1
        await policy.close()


async def test_an_engine_that_recovers_is_asked_to_sleep_when_it_is_ready():
    script = ScriptedServer("generate")
    async with TestServer(script.app()) as server:
        runner = Runner(script, str(server.make_url("")))
        policy = await opened(script, server, sleeps=True, runner=runner)
        script.calls.clear()
        script.raw = b"[]"
        asked = asyncio.create_task(policy.generate([1], ONE))
        while "start" not in script.calls:
            await asyncio.sleep(0.01)
        assert (await asked).token_ids == (1,)
        await policy.sleep()
        assert script.calls[-1] == "sleep level=1"
        await policy.close()

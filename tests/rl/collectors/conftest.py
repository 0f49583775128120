"""Collectors in processes of their own, which sample from scripted servers of this process."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from scripted_vllm import NumberedFolders, NumberProber
from seeded_vllm import WINDOW, SeededServer

from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.serving import ManagedServer, Timeouts
from agents.vllm import VLLMClient, VLLMServerPolicy
from rl.cluster.cluster import THIS_MACHINE
from rl.collectors.collector import RemoteCollector
from rl.collectors.opening import spec_of
from rl.collectors.pool import CollectorPool, PoolSettings
from rl.data.conversations import Conversation, Exchange
from rl.run.process.activity import Activities
from rl.runtime.playing import Playing
from rl.runtime.tiny import train_tokenizer
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

ENVS = Path(__file__).parents[2] / "helpers" / "collected_envs.py"
SAMPLING = SamplingParams(max_tokens=24)


@pytest.fixture(scope="session")
def renderer():
    texts = Conversation((Exchange("task 12: a b c", "a b"),))
    return Renderer(train_tokenizer([texts], 270))


class Setup:
    """Opened collectors, and what plays the same episodes in this process."""

    def __init__(self, playing, policy, pool, scripts):
        self.playing, self.policy, self.pool, self.scripts = playing, policy, pool, scripts

    def here(self, vine=None, sampling=SAMPLING):
        from rl.external.collector import make_collector

        return make_collector(self.playing.context("train", sampling), vine)

    def there(self, vine=None, sampling=SAMPLING):
        context = self.playing.context("train", sampling)
        return RemoteCollector(context, vine, self.pool)

    @property
    def processes(self):
        """The collectors' processes, by number."""
        return {number: handle.child for number, handle in self.pool._handles.items()}


@pytest.fixture
def collectors(renderer, tmp_path):
    """From settings of an environment to a context with its opened collectors."""

    @contextlib.asynccontextmanager
    async def open_them(
        *words, size=2, servers=1, env="Talk", seconds=0.0, stall_s=60.0, script=SeededServer
    ):
        config = parse(
            TrainConfig,
            [f"env={ENVS}:{env}", "policy=vllm-server", "model=m", f"collectors={size}", *words],
            command="train",
            presets={},
        )
        vocab, end = len(renderer.tokenizer), renderer.end_token_ids[0]
        scripts = [script(vocab, end, seconds=seconds) for _ in range(servers)]
        async with contextlib.AsyncExitStack() as stack:
            managed = []
            for one in scripts:
                server = await stack.enter_async_context(TestServer(one.app()))
                connect = VLLMClient.at(str(server.make_url("")))
                prober = NumberProber(one)
                managed.append(ManagedServer(prober, connect=connect, start_s=5, short_s=2))
            policy = VLLMServerPolicy(
                *(managed, NumberedFolders(), NumberProber(scripts[0])),
                context_window=WINDOW,
                timeouts=Timeouts(request_s=30.0, stall_s=stall_s),
            )
            await policy.open()
            stack.push_async_callback(policy.close)
            await policy.load_weights({}, 1)

            common = spec_of(config, policy, renderer.tokenizer, renderer.end_token_ids, WINDOW)
            settings = PoolSettings(
                size=size,
                start=THIS_MACHINE.start_collector,
                spec=lambda number: replace(common, number=number),
                printed=tmp_path,
                counts_together=False,
            )
            pool = CollectorPool(settings, policy)
            stack.push_async_callback(pool.close)
            await pool.open()
            activities = Activities()
            activities.elsewhere = pool
            playing = Playing(
                config=config,
                services={},
                policy=policy,
                renderer=renderer,
                partners={},
                activities=activities,
                context_window=WINDOW,
            )
            yield Setup(playing, policy, pool, scripts)

    return open_them

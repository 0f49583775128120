"""Broken infrastructure, the real one: typed, retried if that can help, no reward, and counted."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

import envs
import tools
from agents.completion import SamplingParams
from agents.scripted import ScriptedPolicy
from envs.code.env import CodeSandboxEnv
from rl.rollout.collector import Collector, RolloutFailure
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.run.metrics.episodes import rollout_metrics
from rl.run.screen import failures
from tools.sandbox import SandboxFailure

SEARCH = "<think> </think> <search> sport of Bako </search>"


@pytest.fixture
def collect(renderer):
    """Play two episodes that all say the same; the trajectories and their metrics."""

    async def play(name, text, services=None, *, retries=1, max_failed=1.0, **options):
        env_id = envs.resolve(name)
        kind = envs.env_type(env_id)
        chosen = kind.Options(**options)
        tokens = [*renderer.splice(text), renderer.end_token_ids[0]]

        async def collected(services):
            collector = Collector(
                EpisodeContext(
                    env_id=env_id,
                    options=chosen,
                    services=services,
                    policy=ScriptedPolicy(lambda session, ids: tokens),
                    renderer=renderer,
                    sampling=SamplingParams(max_tokens=200),
                    limits=EpisodeLimits(
                        context_length=4000, retries=retries, max_failed=max_failed
                    ),
                ),
            )
            (group,) = await collector.collect([0], 2, (5,))
            return group.trajectories, rollout_metrics([group])

        if services is not None:
            return await collected(services)
        async with kind.open_services(chosen) as opened:
            return await collected(opened)

    return play


def assert_failed(trajectories, metrics, kind, retries):
    for trajectory in trajectories:
        assert trajectory.failure.startswith(f"{kind}: ")
        assert (trajectory.terminated, trajectory.truncated) == (False, False)
        assert trajectory.attempts == 1 + retries
    assert (metrics["failures"], metrics[f"failures/{kind}"]) == (2.0, 2.0)
    assert metrics["retries"] == 2.0 * retries
    assert "reward" not in metrics
    expected = f"failures 2 ({kind} 2)"
    assert failures(metrics) == (f"{expected}  restarted {2 * retries}" if retries else expected)


async def test_an_unreachable_retriever(collect):
    options = {"retriever": "http://127.0.0.1:9", "step_timeout_s": 3.0}
    trajectories, metrics = await collect("search-qa", SEARCH, **options)
    assert_failed(trajectories, metrics, "EnvFailure", retries=1)
    assert "retriever at http://127.0.0.1:9/" in trajectories[0].failure
    with pytest.raises(RolloutFailure, match=r"2 of 2 episodes failed, .* the first: EnvFailure: "):
        await collect("search-qa", SEARCH, retries=0, max_failed=0.25, **options)


SHY_RAISES: list[type[BaseException]] = []


@tools.tool
def shy(word: str) -> str:
    """Say.

    Args:
        word: What.
    """
    raise SHY_RAISES.pop(0)(word)


tools.register("shy", shy)


@pytest.mark.parametrize(
    ("raises", "counted"),
    [
        ((ValueError, ValueError), "2 of tool 'shy' (ValueError)"),
        ((KeyError, OSError), "1 of tool 'shy' (KeyError), 1 of tool 'shy' (OSError)"),
        ((ValueError, SystemExit), "1 of tool 'shy' (ValueError), 1 of tool 'shy' (SystemExit)"),
    ],
)
async def test_failures_are_counted_by_tool_and_exception(collect, raises, counted):
    SHY_RAISES[:] = raises
    with pytest.raises(RolloutFailure) as failed:
        await collect("search-qa", "<shy> a </shy>", retries=0, max_failed=0.25, tools="shy")
    message = str(failed.value)
    assert message.startswith(
        f"2 of 2 episodes failed, more than max_failed=0.25 allows; {counted}; the first: "
        f"EnvFailure: tool 'shy' failed: {raises[0].__name__}: "
    )
    assert message.endswith(
        "for a wrong argument of the model, the tool must raise tools.BadArguments"
    )


async def test_a_dead_sandbox(collect):
    words = [sys.executable, "-m", "tools.sandbox", "serve", "--port", "0", "--backend", "bwrap"]
    with subprocess.Popen([*words, "--workers", "1"], stdout=subprocess.PIPE, text=True) as server:
        try:
            line = await asyncio.to_thread(server.stdout.readline)
            url = re.match(r"http://[\d.:]+", line)[0]
            options = CodeSandboxEnv.Options(sandbox=url, step_timeout_s=20)
            async with CodeSandboxEnv.open_services(options) as services:
                program = "def f(xs): return 1"
                trajectories, metrics = await collect("code-sandbox", program, services)
                assert metrics["failures"] == 0.0
                server.kill()
                await asyncio.to_thread(server.wait)
                trajectories, metrics = await collect("code-sandbox", program + "0", services)
        finally:
            server.kill()
    assert_failed(trajectories, metrics, "EnvFailure", retries=1)


async def test_a_sandbox_that_is_broken_for_good_is_not_asked_again(collect):
    class Broken:
        async def grade(self, *arguments: Any) -> None:
            raise SandboxFailure("it does not start", retryable=False)

    trajectories, metrics = await collect("code-sandbox", "x", {"sandbox": Broken()})
    assert_failed(trajectories, metrics, "EnvFailure", retries=0)


class AskEnv(envs.TextEnv[int, int]):
    """Every action is a call of a tool that never answers in time."""

    asked = 0

    def __init__(self, options: envs.EnvOptions, services: Mapping[str, Any] | None = None):
        super().__init__(options, range(10), services)

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: envs.EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        @tools.tool(timeout_s=0.05, retries=2)
        async def slow(word: str) -> str:
            """Think for long.

            Args:
                word: What about.
            """
            cls.asked += 1
            await asyncio.sleep(60)
            return word

        yield {"slow": slow}

    def begin(self, task: int) -> str:
        self.state = task
        return "Ask."

    async def turn(self, action: envs.Action) -> envs.Reply:
        slow = await self.service("slow")
        try:
            result = await slow({"word": str(action)})
        except tools.ToolFailure as error:
            raise envs.EnvFailure(str(error), retryable=error.retryable) from error
        return envs.finish({"asked": 1.0}, result.text)


envs.register("failing-ask-v0", AskEnv)


async def test_a_tool_that_times_out_beyond_its_retries(collect):
    AskEnv.asked = 0
    trajectories, metrics = await collect("failing-ask", "a word")
    assert_failed(trajectories, metrics, "EnvFailure", retries=1)
    assert AskEnv.asked == 2 * 2 * 3, "two episodes, begun twice, in each the call's three attempts"
    assert "tool 'slow' took longer than timeout_s (0.05 s)" in trajectories[0].failure
    assert [t.calls for t in trajectories] == [[], []], "no answer, no record"


def test_a_step_without_failures_reports_none():
    assert failures({"failures": 0.0, "retries": 0.0}) == ""


async def test_one_that_is_slow_to_give_up_may_be_asked_again(make_collector, random_policy):
    sample, calls, released = random_policy.generate, [], asyncio.Event()

    async def generate(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            return await sample(*arguments)
        try:
            await asyncio.sleep(60)
        finally:
            await released.wait()

    random_policy.generate = generate
    collector = make_collector(limits={"retries": 2})
    collecting = asyncio.create_task(collector.collect([0, 1], 1, (5,)))
    while len(calls) < 2:
        await asyncio.sleep(0.005)
    for _ in range(2):
        collector.context.activities.restart_all()
        await asyncio.sleep(0.02)
    released.set()
    groups = await asyncio.wait_for(collecting, 20)
    assert [t.attempts for group in groups for t in group.trajectories] == [2, 2]

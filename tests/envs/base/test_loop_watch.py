"""Which code holds the event loop is named, and its seconds are counted."""

from __future__ import annotations

import asyncio
import time

import pytest

import envs
from envs.base import loop_watch
from envs.options import EnvOptions
from tools.function import tool
from tools.tool import ToolContext

SLEEP_S = 0.2


class Held(envs.TextEnv[int, int]):
    """An environment that does not hold the loop."""

    def __init__(self, options, services=None):
        super().__init__(options, range(8), services)

    def begin(self, task):
        self.state = task
        return "go"

    def turn(self, action):
        return envs.finish({"right": 1.0})


class Plain(Held):
    def turn(self, action):
        time.sleep(SLEEP_S)
        return envs.finish({"right": 1.0})


class Async(Held):
    async def turn(self, action):
        self.reward()
        return envs.finish({"right": 1.0})

    def reward(self):
        time.sleep(SLEEP_S)


class Begins(Plain):
    def begin(self, task):
        self.state = task
        time.sleep(SLEEP_S)
        return "go"

    turn = Held.turn


class Computes(Held):
    def turn(self, action):
        until = time.perf_counter() + SLEEP_S
        while time.perf_counter() < until:
            sum(range(1000))
        return envs.finish({"right": 1.0})


class Tasks(Held):
    async def turn(self, action):
        await asyncio.gather(self.work())
        return envs.finish({"right": 1.0})

    async def work(self):
        time.sleep(SLEEP_S)


@tool
def look(word: str) -> str:
    """Look a word up.

    Args:
        word: the word.
    """
    time.sleep(SLEEP_S)
    return word


class Tools(Held):
    async def turn(self, action):
        await look({"word": "a"}, ToolContext())
        return envs.finish({"right": 1.0})


class Threads(Plain):
    blocking = True


class Awaits(Held):
    async def turn(self, action):
        await asyncio.sleep(SLEEP_S)
        return envs.finish({"right": 1.0})


class Account:
    seconds = 0.0

    def held(self, seconds):
        self.seconds += seconds


async def play(kind, account=None):
    async def one(number):
        loop_watch.held_account.set(account)
        env = kind(EnvOptions())
        await env.areset(seed=0, options={"task": number})
        await asyncio.sleep(0.01)
        await env.astep("x")

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(one(number))


PLAIN = "make it async and await there, or set blocking = True in the environment's class"
ASYNC = "await there, and call blocking code by asyncio.to_thread"
TOOL = "make it async and await there, or give the tool blocking=True"


@pytest.mark.parametrize(
    ("kind", "function", "remedy"),
    [
        (Plain, "Plain.turn", PLAIN),
        (Async, "Async.reward", ASYNC),
        (Begins, "Begins.begin", PLAIN),
        (Computes, "Computes.turn", PLAIN),
        (Tasks, "Tasks.work", ASYNC),
        (Tools, "look", TOOL),
        (Threads, "", ""),
        (Awaits, "", ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_code_that_holds_the_loop_is_named_once_with_its_seconds(
    kind, function, remedy, monkeypatch, caplog
):
    monkeypatch.setattr(loop_watch, "HELD_S", 0.4)
    account = Account()
    await play(kind, account)
    if not function:
        assert (caplog.messages, account.seconds) == ([], 0.0)
        return
    (message,) = caplog.messages
    assert "tests/envs/base/test_loop_watch.py:" in message
    assert f" in {function} held the event loop, and all other episodes, for " in message
    assert message.endswith(f" of the last 5 s: {remedy}")
    assert account.seconds == pytest.approx(4 * SLEEP_S, abs=SLEEP_S)


async def test_an_environment_is_named_without_a_run_and_rare_holds_are_not(monkeypatch, caplog):
    await play(Plain)
    assert caplog.messages == []  # 0.8 s, less than HELD_S
    monkeypatch.setattr(loop_watch, "HELD_S", 0.4)
    await play(Plain)
    assert len(caplog.messages) == 1

"""Who blocks the event loop is named."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time

import pytest

from envs.base import author_calls
from envs.base.author_calls import BlockWatch
from envs.base.deadlines import bounded
from envs.episode import EnvFailure


async def call(method, *, blocking=False, limit_s=5.0):
    answer = author_calls.call(method, 3, "slow-v0", blocking)
    return await bounded(answer, "slow-v0", limit_s) if inspect.isawaitable(answer) else answer


def turn(seconds):
    time.sleep(seconds / 10)
    return seconds


async def test_a_plain_author_who_blocks_the_loop_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr(author_calls, "block_watch", BlockWatch(0.1))
    with caplog.at_level(logging.WARNING):
        assert await call(lambda _: "quick") == "quick"
        await asyncio.sleep(0.2)
        assert caplog.messages == []
        assert await call(turn) == 3
        await asyncio.sleep(0.1)
    assert caplog.messages == [
        "slow-v0: turn has blocked the event loop, and all other episodes, for 0.1 s: make it "
        "async, or set blocking = True"
    ]


async def test_it_is_named_while_it_still_blocks(monkeypatch, caplog):
    monkeypatch.setattr(author_calls, "block_watch", BlockWatch(0.1))
    said_by_then = []

    def turn(_):
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        said_by_then.extend(caplog.messages)

    with caplog.at_level(logging.WARNING):
        await call(turn)
    assert len(said_by_then) == 1


async def test_a_blocking_author_blocks_no_other_episode_and_has_a_deadline(monkeypatch, caplog):
    monkeypatch.setattr(author_calls, "block_watch", BlockWatch(0.05))
    with caplog.at_level(logging.WARNING):
        let_go = threading.Event()
        began = time.monotonic()
        with pytest.raises(EnvFailure, match=r"^slow-v0: a turn waited longer than step_timeout_s"):
            await call(lambda _: let_go.wait(60), blocking=True, limit_s=0.2)
        assert time.monotonic() - began < 30
        let_go.set()
    assert caplog.messages == []

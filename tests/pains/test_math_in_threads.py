"""Complaint 2: math-verify returns 0 or raises outside the main thread.

verifiers#620, #657, #831, #1096, AReaL#1426. Its time limit uses a signal, which only the
main thread may set.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import envs
from envs.math.verification.verifier import MathVerifier

TASK = 1
"""An equation whose answer is no plain number, so that math-verify itself has to compare."""


@pytest.fixture(scope="module")
def services():
    verifier = MathVerifier(workers=1)
    yield {"verifier": verifier}
    verifier.close()


def answers(services):
    env = envs.make("math", services, split="test", level=2)
    env.reset(options={"task": TASK})
    gold = env.state.task.answer
    return [(rf"\boxed{{{gold}}}", 1.0), (rf"\boxed{{{gold} + 0}}", 1.0), (r"\boxed{\pi}", 0.0)]


def reward(services, action):
    env = envs.make("math", services, split="test", level=2)
    env.reset(options={"task": TASK})
    return env.step(action).reward


async def areward(services, action):
    env = envs.make("math", services, split="test", level=2)
    await env.areset(options={"task": TASK})
    return (await env.astep(action)).reward


def test_an_answer_has_the_same_reward_in_every_thread(services):
    pairs = answers(services) * 16
    expected = [worth for _, worth in pairs]
    assert [reward(services, action) for action, _ in pairs[:3]] == expected[:3]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda pair: reward(services, pair[0]), pairs)) == expected


def test_an_answer_has_the_same_reward_in_the_loop_of_a_worker_thread(services):
    pairs = answers(services) * 8

    async def every():
        return await asyncio.gather(*(areward(services, action) for action, _ in pairs))

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, every()).result() == [worth for _, worth in pairs]

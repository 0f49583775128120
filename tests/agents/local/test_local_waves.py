"""Deterministic mode: timing changes nothing, and every wait has a deadline."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from agents.completion import SamplingParams
from agents.local import Limits
from agents.local.forward import ThinForward
from agents.local.request import Request
from agents.local.waves import Gate
from agents.policy import PolicyFailure


def ask(session):
    return Request([1], SamplingParams(), session)


def test_a_wave_has_the_announced_order():
    gate = Gate(10.0)
    gate.announce(["a", "b", "c"])
    requests = {name: ask(name) for name in "abc"}
    for name in "cab":
        assert gate.take_wave() == []
        gate.hold(requests[name])
    assert gate.take_wave() == [requests[name] for name in "abc"]
    assert gate.take_wave() == []


def test_an_ended_episode_is_waited_for_no_more_and_reported_once():
    gate = Gate(10.0)
    gate.announce(["a", "b"])
    gate.hold(ask("b"))
    gate.end("a")
    gate.end("unknown")
    assert gate.take_ended() == ["a"]
    assert gate.take_ended() == []
    assert [r.session for r in gate.take_wave()] == ["b"]


def test_a_cancelled_request_leaves_its_episode_announced():
    gate = Gate(10.0)
    gate.announce(["a"])
    first, second = ask("a"), ask("a")
    gate.hold(first)
    gate.cancel(second)
    with pytest.raises(ValueError, match="'a' has two requests at once"):
        gate.hold(second)
    gate.cancel(first)
    assert not gate.is_complete
    gate.hold(second)
    assert gate.take_wave() == [second]


def test_the_deadline_runs_only_while_a_request_waits():
    gate = Gate(0.05)
    gate.announce(["a", "b", "c"])
    assert gate.remaining_s() is None
    gate.hold(ask("b"))
    remaining = gate.remaining_s()
    assert remaining is not None
    assert 0 < remaining <= 0.05
    gate.check()
    time.sleep(0.06)
    with pytest.raises(PolicyFailure, match="2 episodes without a request: a, c;"):
        gate.check()


async def play_all(policy, timing_seed, seeded=False, shared=25):
    """Nine episodes of one to four turns whose tools answer in an order that the seed changes."""
    timing = random.Random(timing_seed)
    names = [f"e{i}" for i in range(9)]
    policy.begin(names)

    async def play(index, name):
        content = random.Random(index)
        context = [content.randrange(256) for _ in range(20 if index < 5 else 33)]
        if index % 3 == 0:
            context = list(range(shared))  # a group: prompts that are shared
        record = []
        for turn in range(1 + index % 4):
            await asyncio.sleep(timing.random() * 0.02)
            params = SamplingParams(
                max_tokens=content.randrange(3, 14),
                top_p=content.choice([1.0, 0.8]),
                seed=content.choice([index if seeded else None, index * 100 + turn]),
            )
            completion = await policy.generate(context, params, name)
            record.append(completion)
            context = [*context, *completion.token_ids, content.randrange(256)]
        await asyncio.sleep(timing.random() * 0.02)
        policy.end(name)
        return record

    tasks = [asyncio.create_task(play(i, name)) for i, name in enumerate(names)]
    return await asyncio.gather(*tasks)


async def test_two_runs_agree_bit_for_bit(make_policy):
    runs = []
    for timing_seed in range(3):
        policy = make_policy(max_slots=4, deterministic=True, seed=5)
        runs.append([await play_all(policy, timing_seed * 10 + step) for step in range(2)])
    # Completions compare by value: tokens and the last bit of every log-probability.
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] != runs[0][1]
    other = await play_all(make_policy(max_slots=4, deterministic=True, seed=6), 0)
    assert other != runs[0][0]


async def test_earlier_generations_change_no_bit(make_policy):
    """A resumed run meets an empty cache where an uninterrupted one has seen a validation."""
    fresh = make_policy(max_slots=4, deterministic=True)
    used = make_policy(max_slots=4, deterministic=True)
    await play_all(used, 7, seeded=True, shared=30)
    assert used.stats().num_saved_tokens > 0
    first, second = [await play_all(policy, 1, seeded=True, shared=25) for policy in (fresh, used)]
    assert first == second
    empty = fresh.stats().num_prefill_tokens
    assert (await play_all(fresh, 1, seeded=True, shared=25)) == first
    assert fresh.stats().num_prefill_tokens == 2 * empty, "nothing came from a cache"


async def test_an_episode_restarted_alone_keeps_the_cache_of_the_others(make_policy):
    policy = make_policy(max_slots=4, deterministic=True)
    prompt = list(range(40))
    policy.begin(["a"])
    await policy.generate(prompt, SamplingParams(max_tokens=2), "a")
    policy.begin(["b"])
    policy.end("a")
    await policy.generate(prompt, SamplingParams(max_tokens=2), "b")
    assert policy.stats().num_saved_tokens == len(prompt) - 1
    policy.end("b")
    policy.begin(["c"])
    await policy.generate(prompt, SamplingParams(max_tokens=2), "c")
    assert policy.stats().num_saved_tokens == len(prompt) - 1, "a new collection starts anew"


async def test_episodes_that_were_not_announced_are_refused(make_policy):
    policy = make_policy(deterministic=True)
    policy.begin(["a"])
    for session in (None, "b"):
        with pytest.raises(ValueError, match="call begin"):
            await policy.generate([1], SamplingParams(max_tokens=1), session)
    completion = await policy.generate([1], SamplingParams(max_tokens=1), "a")
    assert len(completion.token_ids) == 1


async def test_a_wave_that_takes_long_is_no_missing_episode(make_policy, monkeypatch):
    policy = make_policy(deterministic=True, limits=Limits(wave_s=0.2))
    run = ThinForward.run

    def slowly(self, batch):
        time.sleep(0.03)
        return run(self, batch)

    monkeypatch.setattr(ThinForward, "run", slowly)
    policy.begin(["fast", "slow"])

    async def play(name, counts):
        lengths = []
        for count in counts:
            completion = await policy.generate([1], SamplingParams(max_tokens=count), name)
            lengths.append(len(completion.token_ids))
        policy.end(name)
        return lengths

    # The fast one asks again at once, and the slow one is busy for longer than the deadline.
    played = await asyncio.gather(play("fast", [1, 1]), play("slow", [12]))
    assert played == [[1, 1], [12]]


async def test_a_missing_episode_is_named_when_the_wave_has_waited_long_enough(make_policy):
    policy = make_policy(deterministic=True, limits=Limits(wave_s=0.1))
    policy.begin(["a", "b", "slow"])
    calls = [policy.generate([1], SamplingParams(max_tokens=2), name) for name in "ab"]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PolicyFailure] * 2
    assert "1 episodes without a request: slow;" in str(outcomes[0])
    # The others can go on once the missing one is taken out.
    policy.end("slow")
    calls = [policy.generate([1], SamplingParams(max_tokens=2), name) for name in "ab"]
    assert [len(c.token_ids) for c in await asyncio.gather(*calls)] == [2, 2]

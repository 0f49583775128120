"""The thread: faults reach every caller, cancelled calls stop, the loop stays responsive."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from agents.completion import SamplingParams
from agents.local import Limits
from agents.local.forward import ThinForward
from agents.policy import PolicyFailure

SHORT = SamplingParams(max_tokens=4)
ENDLESS = SamplingParams(max_tokens=240)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_hundreds_of_calls_share_a_few_slots(make_policy):
    policy = make_policy(max_slots=16)
    calls = [
        policy.generate([i % 256, 1 + i // 256], SamplingParams(max_tokens=1 + i % 9), f"s{i}")
        for i in range(200)
    ]
    completions = await asyncio.gather(*calls)
    assert [len(c.token_ids) for c in completions] == [1 + i % 9 for i in range(200)]
    stats = policy.stats()
    assert stats.num_generated_tokens == sum(1 + i % 9 for i in range(200))
    assert stats.mean_occupancy > 0.7
    assert 0 < stats.forward_s < 60


async def test_cancelling_a_call_frees_its_slot(make_policy):
    policy = make_policy(max_slots=1)
    running = asyncio.create_task(policy.generate([1], ENDLESS))
    await until(lambda: policy.stats().num_generated_tokens > 2)
    queued = asyncio.create_task(policy.generate([2], ENDLESS))
    waiting = asyncio.create_task(policy.generate([3], SHORT))
    await asyncio.sleep(0)
    running.cancel()
    queued.cancel()
    assert len((await waiting).token_ids) == 4
    for task in (running, queued):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert policy.stats().num_generated_tokens < 200


async def test_a_fault_in_the_thread_fails_every_call(make_policy, monkeypatch):
    policy = make_policy(max_slots=2)
    calls = [asyncio.create_task(policy.generate([i], ENDLESS)) for i in range(5)]
    await until(lambda: policy.stats().num_generated_tokens > 2)

    def out_of_memory(self, batch):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ThinForward, "run", out_of_memory)
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [PolicyFailure] * 5
    assert len({id(outcome) for outcome in outcomes}) == 5
    assert "RuntimeError: out of memory" in str(outcomes[0])
    assert isinstance(outcomes[0].__cause__, RuntimeError)
    # The thread is over: later calls say so at once.
    with pytest.raises(PolicyFailure, match="out of memory"):
        await policy.generate([1], SHORT)
    with pytest.raises(PolicyFailure, match="out of memory"):
        await policy.load_weights(None, 1)
    policy.end("anything")


async def test_closing_fails_running_calls_and_ends_the_thread(make_policy):
    def threads():
        return sum(thread.name == "local-policy" for thread in threading.enumerate())

    before = threads()
    policy = make_policy(max_slots=1)
    calls = [asyncio.create_task(policy.generate([i], ENDLESS)) for i in range(3)]
    await until(lambda: policy.stats().num_generated_tokens > 2)
    assert threads() == before + 1
    await policy.close()
    assert threads() == before
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"the policy is closed"}
    await policy.close()
    with pytest.raises(PolicyFailure, match="closed"):
        await policy.generate([1], SHORT)


async def test_a_completion_has_a_deadline(make_policy, monkeypatch):
    policy = make_policy(max_slots=1, limits=Limits(completion_s=0.1))
    run = ThinForward.run

    def slowly(self, batch):
        time.sleep(0.03)
        return run(self, batch)

    monkeypatch.setattr(ThinForward, "run", slowly)
    with pytest.raises(PolicyFailure, match=r"computed for 0\.1 s, \d+ tokens so far"):
        await policy.generate([1], ENDLESS)
    monkeypatch.undo()
    assert len((await policy.generate([1], SHORT)).token_ids) == 4


async def test_the_deadline_of_a_queued_completion_begins_when_the_queue_moves(
    make_policy, monkeypatch
):
    policy = make_policy(max_slots=1, limits=Limits(completion_s=0.5))
    run = ThinForward.run

    def slowly(self, batch):
        time.sleep(0.04)
        return run(self, batch)

    monkeypatch.setattr(ThinForward, "run", slowly)
    names = [f"e{i}" for i in range(5)]
    calls = [policy.generate([i], SHORT, name) for i, name in enumerate(names)]
    # Each takes less than 0.5 s and all together more: the last one queues for longer.
    completions = await asyncio.gather(*calls)
    assert [len(completion.token_ids) for completion in completions] == [4] * 5
    queued = [policy.queued_s(name) for name in names]
    assert queued == sorted(queued)
    assert queued[0] < 0.1
    assert queued[-1] > 0.5
    policy.end(names[-1])
    assert policy.queued_s(names[-1]) == 0.0

    monkeypatch.setattr(ThinForward, "run", lambda self, batch: time.sleep(0.8) or run(self, batch))
    calls = [policy.generate([i], SHORT) for i in range(2)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(outcome).split(" for")[0] for outcome in outcomes] == [
        "no completion: computed",
        "no completion: queued",
    ]


async def test_a_step_that_hangs_is_reported_by_commands(make_policy, monkeypatch):
    policy = make_policy(limits=Limits(command_s=0.1))
    entered, release = threading.Event(), threading.Event()

    def hang(self, batch):
        entered.set()
        release.wait(10)
        raise RuntimeError("released")

    monkeypatch.setattr(ThinForward, "run", hang)
    call = asyncio.create_task(policy.generate([1], SHORT))
    await until(entered.is_set)
    with pytest.raises(PolicyFailure, match=r"did not answer within 0\.1 s"):
        await policy.load_weights(None, 1)
    with pytest.raises(PolicyFailure, match=r"did not end within 0\.1 s"):
        await policy.close()
    # What came while it hung is failed with the rest.
    late = asyncio.create_task(policy.generate([2], SHORT))
    await asyncio.sleep(0.01)
    release.set()
    for task in (call, late):
        with pytest.raises(PolicyFailure, match="released"):
            await asyncio.wait_for(task, 10)


async def test_the_event_loop_stays_responsive(make_policy, monkeypatch):
    policy = make_policy(max_slots=4)
    run = ThinForward.run

    def slowly(self, batch):
        time.sleep(0.05)
        return run(self, batch)

    monkeypatch.setattr(ThinForward, "run", slowly)
    call = asyncio.create_task(policy.generate([1], SHORT))
    worst = 0.0
    while not call.done():
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - start)
    # A loop that waited for the model would be away for all its steps, 0.2 s.
    assert worst < 0.15


async def test_torch_threads_of_the_caller_stay_as_they_are(make_policy, monkeypatch):
    seen = []
    run = ThinForward.run

    def record(self, batch):
        seen.append(torch.get_num_threads())
        return run(self, batch)

    monkeypatch.setattr(ThinForward, "run", record)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        policy = make_policy(limits=Limits(num_threads=1))
        await policy.generate([1], SHORT)
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join(10)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        assert later == [2]
    finally:
        torch.set_num_threads(before)


def test_calls_from_two_event_loops(make_model, tokenizer):
    from agents.local import LocalPolicy

    policy = LocalPolicy(make_model("qwen3"), tokenizer, max_slots=2)
    results = {}

    def ask(name):
        async def many():
            return await asyncio.gather(*(policy.generate([i], SHORT) for i in range(6)))

        results[name] = asyncio.run(many())

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    asyncio.run(policy.close())
    assert [len(c.token_ids) for name in "ab" for c in results[name]] == [4] * 12

"""The thread for parallel computation: one job after the other, between a policy's steps."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from agents.completion import SamplingParams
from agents.local import Limits, TorchThread


async def test_jobs_run_in_order_with_the_threads_that_were_asked_for():
    thread, seen = TorchThread(3), []
    before = torch.get_num_threads()
    jobs = [thread.do(seen.append, i) for i in range(20)]
    await asyncio.gather(*jobs)
    assert seen == list(range(20))
    assert await thread.do(torch.get_num_threads) == 3
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        await thread.do(divmod, 1, 0)
    await thread.close()
    await thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        await thread.do(int)


async def test_a_job_may_use_fewer_cores_than_the_thread():
    thread, seen = TorchThread(3), []
    for at_most in (2, None, 8):
        thread.post(lambda: seen.append(torch.get_num_threads()), at_most)
    await thread.settle()
    thread.num_threads = 1
    thread.post(lambda: seen.append(torch.get_num_threads()), 2)
    await thread.settle()
    assert seen == [2, 3, 3, 1]
    await thread.close()


async def test_later_threads_inherit_the_number_of_the_process():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        thread = TorchThread(3)
        for at_most in (1, 2, None):
            done = threading.Event()
            thread.post(done.set, at_most)
            assert await asyncio.to_thread(done.wait, 30)
            inherited: list[int] = []
            later = threading.Thread(
                target=lambda into: into.append(torch.get_num_threads()), args=(inherited,)
            )
            later.start()
            later.join(30)
            assert inherited == [4]
        await thread.close()
    finally:
        torch.set_num_threads(before)


async def test_a_small_model_is_computed_with_one_core(make_policy, monkeypatch):
    used = []
    for least in (2_000_000, 0):
        monkeypatch.setattr("agents.local.policy._PARALLEL_FROM", least)
        thread = TorchThread(2)
        policy = make_policy(limits=Limits(thread=thread))
        engine = policy._engine
        step = engine.step

        def look(step=step, least=least):
            used.append((least, torch.get_num_threads()))
            return step()

        monkeypatch.setattr(engine, "step", look)
        await policy.generate([1], SamplingParams(max_tokens=2))
        assert await thread.do(torch.get_num_threads) == 2
        await policy.close()
        await thread.close()
    assert set(used) == {(2_000_000, 1), (0, 2)}


async def test_a_job_whose_caller_is_cancelled_is_done_to_its_end():
    thread, go, done = TorchThread(), threading.Event(), threading.Event()
    first = asyncio.create_task(thread.do(go.wait, 30))
    second = asyncio.create_task(thread.do(done.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not done.is_set()
    go.set()
    await first
    await thread.settle()
    assert done.is_set()
    await thread.close()


async def test_a_learner_gets_its_turn_between_the_steps_of_a_policy(make_policy):
    thread = TorchThread()
    policy = make_policy(max_slots=2, limits=Limits(thread=thread))
    call = asyncio.create_task(policy.generate([1], SamplingParams(max_tokens=240)))
    async with asyncio.timeout(30):
        while policy.stats().num_generated_tokens < 2:
            await asyncio.sleep(0.001)
    seen = await thread.do(lambda: (torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
    assert seen == (False, True)
    assert not call.done()
    assert len((await call).token_ids) == 240
    await policy.close()
    # The thread is not the policy's: it goes on.
    assert await thread.do(int) == 0
    await thread.close()

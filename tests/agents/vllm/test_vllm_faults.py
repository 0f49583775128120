"""Real servers that die, hang or lose connections, which episodes do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tiny_served import WINDOW, new_model, nudge

from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from agents.serving import ManagedServer
from agents.serving.orphans import SHARED_MEMORY
from agents.vllm import VLLMClient, VLLMServerProcess

PROMPT = list(range(20, 60))
SAMPLING = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
START_S = 420.0


@pytest.fixture
async def policy(server_config, open_policy):
    """A policy on a server of its own, which hangs after 8 s without a token."""
    model = new_model()

    def managed(prober):
        return ManagedServer(
            prober, runner=VLLMServerProcess(server_config()), start_s=START_S, short_s=15.0
        )

    policy = await open_policy(model, managed, stall_s=8.0)
    policy.model = model
    await policy.load_weights(model.state_dict(), 1)
    return policy


def group_of(policy) -> list[int]:
    """The processes of a policy's server: its front end, its engine, its worker."""
    process = policy._servers[0]._runner._process
    if process is None:
        return []
    front = process.pid
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == front and fields[0] != "Z":
            found.append((int(fields[19]), int(status.parent.name)))
    # By their start: the kernel gives out small process ids again when it has used the largest.
    return [pid for _, pid in sorted(found, key=lambda one: (one[1] != front, one))]


async def sampled(policy, count: int) -> None:
    client = policy._servers[0].client
    while (await client.num_tokens() or 0) < count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("victim", ["front end", "worker"])
async def test_a_killed_server_is_restarted_and_its_requests_are_retried(policy, victim):
    expected = await policy.generate(PROMPT, SAMPLING)
    nudge(policy.model, 0.1)
    await policy.load_weights(policy.model.state_dict(), 2)
    expected = await policy.generate(PROMPT, SAMPLING)
    before = group_of(policy)
    calls = [asyncio.create_task(policy.generate(PROMPT, SAMPLING)) for _ in range(48)]
    await sampled(policy, 600)
    os.kill(before[0] if victim == "front end" else before[-1], signal.SIGKILL)
    completions = await asyncio.gather(*calls)
    assert [c.token_ids for c in completions] == [expected.token_ids] * 48
    assert {v for c in completions for v in c.versions} == {2}
    metrics = policy.take_metrics()
    assert metrics["policy/restarts"] == 1
    assert metrics["policy/reissued"] >= 1
    assert not set(before) & set(group_of(policy))
    assert not any(Path(f"/proc/{process}").exists() for process in before), "an orphan is left"


async def test_weights_published_during_a_recovery_arrive(policy):
    managed = policy._servers[0]
    loads, begun = managed._load_and_prove, asyncio.Event()

    async def seen(**how):
        begun.set()
        return await loads(**how)

    managed._load_and_prove = seen
    os.kill(group_of(policy)[0], signal.SIGKILL)
    asking = asyncio.create_task(policy.generate(PROMPT, SAMPLING))
    # It is being given version 1 again, when version 2 is there.
    await asyncio.wait_for(begun.wait(), START_S)
    nudge(policy.model, 0.1)
    await asyncio.wait_for(policy.load_weights(policy.model.state_dict(), 2), START_S)
    assert policy.take_metrics()["sync/max_difference"] < 1e-4
    assert (await asking).versions[-1] == 2
    assert set((await policy.generate(PROMPT, SAMPLING)).versions) == {2}


async def test_a_server_killed_during_its_restart_is_restarted_once_more(policy):
    expected = await policy.generate(PROMPT, SAMPLING)
    front = group_of(policy)[0]
    os.kill(front, signal.SIGKILL)
    asking = asyncio.create_task(policy.generate(PROMPT, SAMPLING))
    while (process := policy._servers[0]._runner._process) is None or process.pid == front:
        await asyncio.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert (await asking).token_ids == expected.token_ids
    assert policy.take_metrics()["policy/restarts"] == 2


async def test_a_hanging_worker_behind_a_healthy_front_end_is_detected(policy):
    calls = [asyncio.create_task(policy.generate(PROMPT, SAMPLING)) for _ in range(48)]
    await sampled(policy, 200)
    os.kill(group_of(policy)[-1], signal.SIGSTOP)
    completions = await asyncio.gather(*calls)
    assert all(len(c.token_ids) == SAMPLING.max_tokens for c in completions)
    assert policy.take_metrics()["policy/restarts"] == 1


async def test_closing_leaves_no_process_and_no_shared_memory(server_config, open_policy):
    before = set(SHARED_MEMORY.iterdir())
    policy = await open_policy(
        new_model(),
        lambda prober: ManagedServer(
            prober, runner=VLLMServerProcess(server_config()), start_s=START_S
        ),
    )
    await policy.load_weights(new_model().state_dict(), 1)
    group = group_of(policy)
    calls = [asyncio.create_task(policy.generate(PROMPT, SAMPLING)) for _ in range(48)]
    await sampled(policy, 60)
    await policy.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(end, PolicyFailure) and "closed" in str(end) for end in ends)
    with pytest.raises(PolicyFailure, match="closed"):
        await policy.generate(PROMPT, SAMPLING)
    assert len(group) >= 2
    assert not any(Path(f"/proc/{process}").exists() for process in group)
    assert set(SHARED_MEMORY.iterdir()) <= before


async def test_a_server_that_cannot_start_reports_why(server_config, open_policy):
    broken = server_config(arguments=("--max-num-seqs", "none"))
    with pytest.raises(PolicyFailure, match=r"ended during its start: .*max-num-seqs"):
        await open_policy(
            new_model(),
            lambda prober: ManagedServer(prober, runner=VLLMServerProcess(broken), start_s=START_S),
        )


async def test_a_missing_interpreter_is_named(server_config, open_policy):
    nowhere = server_config(python="/nowhere/python")
    with pytest.raises(PolicyFailure, match="cannot be started by /nowhere/python"):
        await open_policy(
            new_model(), lambda prober: ManagedServer(prober, runner=VLLMServerProcess(nowhere))
        )


async def test_a_url_without_a_server_is_reported_within_its_deadline(open_policy):
    with pytest.raises(PolicyFailure, match=r"127\.0\.0\.1:9 was not there after 0\.5 s"):
        await open_policy(
            new_model(),
            lambda prober: ManagedServer(
                prober, connect=VLLMClient.at("http://127.0.0.1:9"), short_s=0.5
            ),
        )

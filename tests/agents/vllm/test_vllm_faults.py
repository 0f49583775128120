"""Real servers that die, hang or lose connections, which episodes do not notice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import pytest_asyncio
from tiny_served import WINDOW, new_model, nudge, prober_of

from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from agents.serving import ManagedServer, Timeouts, WeightFolders
from agents.serving.orphans import Used
from agents.vllm import VLLMServerPolicy, VLLMServerProcess

# One loop for all tests: they share a server, which each test leaves restarted.
pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = list(range(20, 60))
SAMPLING = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
START_S = 420.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(server_config, tmp_path_factory):
    """A policy on a server of its own, which hangs after 8 s without a token."""
    model = new_model()
    prober = prober_of(model)
    runner = VLLMServerProcess(server_config())
    policy = VLLMServerPolicy(
        [ManagedServer(prober, runner=runner, start_s=START_S, short_s=15.0)],
        WeightFolders(tmp_path_factory.mktemp("faults") / "weights"),
        prober,
        context_window=WINDOW,
        timeouts=Timeouts(request_s=START_S, stall_s=8.0),
    )
    policy.model = model
    await policy.open()
    yield policy
    await policy.close()


@pytest_asyncio.fixture(loop_scope="module")
async def policy(shared):
    """The shared policy with new weights, before any restart."""
    await update(shared)
    shared.take_metrics()
    return shared


async def update(policy) -> None:
    nudge(policy.model, 0.1)
    await policy.load_weights(policy.model.state_dict(), policy.version + 1)


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


async def num_tokens(policy) -> float:
    return await policy._servers[0].client.num_tokens() or 0


async def running(policy, count: int) -> list[asyncio.Task]:
    """Requests, as soon as the server has read and sampled this many tokens for them."""
    begun = await num_tokens(policy)
    calls = [asyncio.create_task(policy.generate(PROMPT, SAMPLING)) for _ in range(48)]
    while await num_tokens(policy) < begun + count:
        await asyncio.sleep(0.01)
    return calls


@pytest.mark.parametrize("victim", ["front end", "worker"])
async def test_a_killed_server_is_restarted_and_its_requests_are_retried(policy, victim):
    await update(policy)
    expected = await policy.generate(PROMPT, SAMPLING)
    before = group_of(policy)
    calls = await running(policy, 600)
    os.kill(before[0] if victim == "front end" else before[-1], signal.SIGKILL)
    completions = await asyncio.gather(*calls)
    assert [c.token_ids for c in completions] == [expected.token_ids] * 48
    assert {v for c in completions for v in c.versions} == {policy.version}
    metrics = policy.take_metrics()
    assert metrics["policy/restarts"] == 1
    assert metrics["policy/reissued"] >= 1
    assert not set(before) & set(group_of(policy))
    assert not any(Path(f"/proc/{process}").exists() for process in before), "an orphan is left"


async def test_weights_published_during_a_recovery_arrive(policy, monkeypatch):
    managed, version = policy._servers[0], policy.version
    loads, begun = managed._load_and_prove, asyncio.Event()

    async def seen(**how):
        begun.set()
        return await loads(**how)

    monkeypatch.setattr(managed, "_load_and_prove", seen)
    os.kill(group_of(policy)[0], signal.SIGKILL)
    asking = asyncio.create_task(policy.generate(PROMPT, SAMPLING))
    # The server is being given the old version again when the next one is there.
    await asyncio.wait_for(begun.wait(), START_S)
    await asyncio.wait_for(update(policy), START_S)
    assert policy.version == version + 1
    assert policy.take_metrics()["sync/max_difference"] < 1e-4
    assert (await asking).versions[-1] == version + 1
    assert set((await policy.generate(PROMPT, SAMPLING)).versions) == {version + 1}


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
    calls = await running(policy, 200)
    os.kill(group_of(policy)[-1], signal.SIGSTOP)
    completions = await asyncio.gather(*calls)
    assert all(len(c.token_ids) == SAMPLING.max_tokens for c in completions)
    assert policy.take_metrics()["policy/restarts"] == 1


async def test_closing_leaves_no_process_and_no_shared_memory(policy):
    # The last test: it ends the server.
    group = group_of(policy)
    calls = await running(policy, 60)
    used = Used(lambda: group, before=set())
    used.observe()
    await policy.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(end, PolicyFailure) and "closed" in str(end) for end in ends)
    with pytest.raises(PolicyFailure, match="closed"):
        await policy.generate(PROMPT, SAMPLING)
    assert len(group) >= 2
    assert not any(Path(f"/proc/{process}").exists() for process in group)
    assert used.orphans() == set()

"""One model that is sampled by this process and by another one."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from agents.completion import SamplingParams
from agents.local import Limits, LocalPolicy
from agents.local.processes import MultiProcessPolicy, process, shared_weights
from agents.local.processes.messages import Progress
from agents.local.processes.process import SamplingProcess
from agents.local.processes.shared_weights import Layout
from agents.policy import PolicyFailure
from rl.packing.attention import prepare

PROMPTS = [[7 + group, 3, 200, 41, 5] for group in range(4) for _ in range(3)]


@pytest.fixture
async def policy(make_model, tokenizer):
    policy = MultiProcessPolicy(
        make_model("qwen3"), tokenizer, processes=2, max_slots=12, limits=Limits(num_threads=2)
    )
    yield policy
    await policy.close()


def params(number):
    return SamplingParams(max_tokens=20, seed=number, temperature=0.9)


async def sample(policy, prompts, prefix=""):
    """Completions, each of an episode of its own."""
    ask = [
        policy.generate(prompt, params(number), session=f"{prefix}{number}")
        for number, prompt in enumerate(prompts)
    ]
    return await asyncio.gather(*ask)


def assert_from(model, prompts, completions, version):
    for prompt, completion in zip(prompts, completions, strict=True):
        tokens = torch.tensor([*prompt, *completion.token_ids])
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].float()
        found = (logits / 0.9).log_softmax(-1)
        chosen = found.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert (chosen - torch.tensor(completion.logprobs)).abs().max() < 1e-4
        assert set(completion.versions) == {version}


async def check_wrong_and_cancelled_calls(policy):
    """Here and in the other process. A start takes seconds, so these are no tests of their own."""
    long = SamplingParams(max_tokens=200, seed=1)
    calls = [
        asyncio.create_task(policy.generate([n], long, session=f"long{n}")) for n in range(1, 3)
    ]
    await asyncio.sleep(0)
    assert policy._open == {-1: 1, 0: 1}
    for call in calls:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    for number in range(1, 3):
        with pytest.raises(ValueError, match="prompt_ids holds 9999999999"):
            await policy.generate([9999999999], params(1), session=f"long{number}")
    with pytest.raises(ValueError, match="state_dict"):
        await policy.load_weights({"x": torch.zeros(1)}, 2)


def check_episodes_of_one_prompt_are_divided(policy):
    """As in a game whose episodes all begin alike. With 6 rows, a process may be 3 ahead."""
    chosen = [policy._place([1, 2, 3], f"alike{number}") for number in range(8)]
    assert chosen[:3] == [chosen[0]] * 3
    assert sorted(chosen) == [-1] * 4 + [0] * 4
    for number in range(8):
        policy.end(f"alike{number}")


async def test_both_processes_sample_the_tokens_of_one_process_and_follow_the_weights(
    policy, make_model, tokenizer
):
    model = policy._model
    alone = LocalPolicy(make_model("qwen3"), tokenizer, max_slots=8)
    alone._model.load_state_dict(model.state_dict())
    await alone.load_weights(None, 0)
    completions = await sample(policy, PROMPTS)
    assert [c.token_ids for c in completions] == [c.token_ids for c in await sample(alone, PROMPTS)]
    await alone.close()
    assert_from(model, PROMPTS, completions, 0)
    assert policy._open == {-1: 6, 0: 6}
    # An episode and the members of its group stay in one process.
    assert len({policy._places[str(number)][0] for number in range(3)}) == 1
    turns = [p + list(c.token_ids) + [9] for p, c in zip(PROMPTS, completions, strict=True)]
    assert_from(model, turns, await sample(policy, turns), 0)
    assert policy._open == {-1: 6, 0: 6}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    await policy.load_weights(None, 1)
    assert policy.version == 1
    assert_from(model, turns, await sample(policy, turns, "later"), 1)
    check_episodes_of_one_prompt_are_divided(policy)
    for number in range(12):
        policy.end(str(number))
        policy.end(f"later{number}")
    assert policy._open.total() == 0 and not policy._prompts and not policy._places
    await check_wrong_and_cancelled_calls(policy)


async def test_a_killed_process_fails_its_episodes_with_one_line(policy):
    long = SamplingParams(max_tokens=200, seed=1)
    await policy.generate([1, 2], params(1), session="here")
    # A terminal's Ctrl-C goes to its whole session.
    assert os.getsid(policy._others[0].pid) != os.getsid(0)
    pending = asyncio.create_task(policy.generate([3, 4], long, session="there"))
    await asyncio.sleep(0)
    os.kill(policy._others[0].pid, signal.SIGKILL)
    with pytest.raises(PolicyFailure, match=r"sampling process \d+ ended \(exit code -9\)"):
        await pending
    with pytest.raises(PolicyFailure, match="ended"):
        await policy.generate([3, 4], params(2), session="there")
    with pytest.raises(PolicyFailure, match="ended"):
        await policy.load_weights(None, 1)
    assert len((await policy.generate([1, 2], params(1), session="here")).token_ids) == 20


async def test_a_model_that_is_prepared_for_packed_rows_samples_in_every_process(make_model):
    """Such a model names an attention function that only the learner's modules register."""
    model = make_model("olmo2")
    assert prepare(model) is None
    policy = MultiProcessPolicy(model, None, processes=2, max_slots=4, limits=Limits(num_threads=2))
    try:
        assert_from(model, [[5, 6], [7, 8]], await sample(policy, [[5, 6], [7, 8]]), 0)
        assert policy._open == {-1: 1, 0: 1}
    finally:
        await policy.close()


async def test_a_model_that_cannot_be_sent_fails_its_episodes_with_one_line(make_model):
    model = make_model("qwen3")
    model.model.norm.register_forward_hook(lambda *_: None)
    policy = MultiProcessPolicy(model, None, processes=2, max_slots=4, limits=Limits(num_threads=2))
    try:
        await policy.generate([1, 2], params(1), session="here")
        with pytest.raises(PolicyFailure, match=r"cannot be sent .*: start again with policy\.pro"):
            await policy.generate([3, 4], params(1), session="there")
    finally:
        await policy.close()


@pytest.fixture
async def silent(tmp_path, monkeypatch):
    """A process that never answers, of which the test decides what it hears when."""
    (tmp_path / "silent_process.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SamplingProcess, "module", "silent_process")
    monkeypatch.setattr(process, "START_S", 0.0)
    monkeypatch.setattr(process, "_LATE_S", 0.0)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(process, "time", clock)
    memory = os.memfd_create("test")
    silent = SamplingProcess(SimpleNamespace(completion_s=0.02, num_threads=1), memory)
    os.close(memory)
    yield silent, clock
    await silent.close()


async def test_a_request_waits_in_a_queue_while_its_process_reports(silent):
    process, clock = silent
    waiting = asyncio.create_task(process.generate([1, 2], params(1), "e"))
    for clock.now in (0.015, 0.03, 0.045):
        process._take(Progress(1, {"e": clock.now}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert process.queued_s("e") == 0.045
    clock.now = 0.07
    with pytest.raises(PolicyFailure, match="did not answer, and reported nothing for"):
        await asyncio.wait_for(waiting, 60)


def test_tied_weights_are_stored_once_and_keep_their_types():
    weight = torch.arange(6.0).view(2, 3)
    state = {"a": weight, "b": weight, "c": torch.ones(5, dtype=torch.bfloat16)}
    layout = Layout.of(state)
    memory = shared_weights.create(layout)
    here, there = (shared_weights.tensors(memory, layout) for _ in range(2))
    os.close(memory)
    assert list(here) == ["a", "c"]
    assert layout.size == 128
    shared_weights.write(here, state)
    assert torch.equal(there["a"], weight)
    assert torch.equal(there["c"], state["c"])

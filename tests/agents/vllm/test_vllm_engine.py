"""The real engine in this process, where this interpreter has vLLM.

vLLM pins what other tests need in another version: these run by an interpreter of its own, which
finds this environment's packages behind its own ones (``.ci/run``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import pytest_asyncio
from processes import alive
from tiny_served import WINDOW, new_model, nudge, prober_of

from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure
from agents.serving import Timeouts, WeightFolders, WeightsDiffer
from agents.serving.orphans import SHARED_MEMORY
from agents.vllm import EngineConfig, VLLMEnginePolicy, VLLMEngineProcess
from rl.learner.model import score_tokens

pytest.importorskip("vllm", reason="vLLM is not installed for this interpreter")

# One loop for all: an engine belongs to the loop that it was first asked from.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]
PROMPT = list(range(20, 60))
START_S = 420.0


def make_policy(model, folder, **config):
    settings = {"context_window": WINDOW, "dtype": "float32"} | config
    return VLLMEnginePolicy(
        VLLMEngineProcess(EngineConfig(model=str(folder), **settings)),
        WeightFolders(),
        prober_of(model),
        context_window=WINDOW,
        timeouts=Timeouts(request_s=START_S),
        start_s=START_S,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(model_folder, tmp_path_factory):
    """An engine that the tests share; the first weights are version 1."""
    model = new_model()
    log = tmp_path_factory.mktemp("engine") / "logs" / "engine.log"
    policy = make_policy(model, model_folder, log=log)
    before = dict(os.environ)
    policy.model = model
    await policy.open()
    await policy.load_weights(model.state_dict(), 1)
    assert dict(os.environ) == before, "what vLLM sets is for its own processes"
    yield policy
    await policy.close()
    assert "vllm" in log.read_text().lower()


def shared_memory_of(pids):
    """The blocks of shared memory that these processes have mapped."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    names = {line.split()[5] for line in lines if f"{SHARED_MEMORY}/psm_" in line}
    return {Path(name) for name in names}


def far(model, completion, temperature, prompt=PROMPT) -> float:
    """The largest distance between a completion's log-probabilities and the model's."""
    scored = score_tokens(model, [*prompt, *completion.token_ids], temperature)[len(prompt) - 1 :]
    return max(abs(a - b) for a, b in zip(completion.logprobs, scored, strict=True))


async def update(policy, scale=0.02):
    nudge(policy.model, scale)
    await policy.load_weights(policy.model.state_dict(), policy.version + 1)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_logprobs_are_those_under_the_sampling_temperature(engine, temperature):
    sampling = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
    completion = await engine.generate(PROMPT, sampling)
    assert len(completion.token_ids) == 24
    assert completion.versions == (engine.version,) * 24
    assert completion.finish_reason is FinishReason.LENGTH
    assert far(engine.model, completion, temperature) < 1e-4


async def test_twenty_updates_arrive_each_within_1e_4(engine):
    differences = []
    for _ in range(20):
        await update(engine)
        differences.append(engine.take_metrics()["sync/max_difference"])
    assert len(differences) == 20
    assert engine.take_metrics()["sync/tensors_compared"] == len(engine.model.state_dict())
    assert 0 < max(differences) < 1e-4
    completion = await engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=1))
    assert completion.versions == (engine.version,) * 8


async def test_a_running_completion_continues_with_new_weights_and_records_versions(engine):
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    before, old_version = new_model(), engine.version
    before.load_state_dict(engine.model.state_dict())
    client = engine._server.client
    begun = await client.num_tokens()
    calls = [asyncio.create_task(engine.generate(PROMPT, sampling)) for _ in range(8)]
    while await client.num_tokens() < begun + 700:  # the prompts, and some that is sampled
        await asyncio.sleep(0.01)
    await update(engine, 0.1)
    spans = 0
    for completion in await asyncio.gather(*calls):
        first, count = completion.versions.count(old_version), len(completion.versions)
        assert completion.versions == (old_version,) * first + (engine.version,) * (count - first)
        tokens = [*PROMPT, *completion.token_ids]
        old = score_tokens(before, tokens, 1.0)[len(PROMPT) - 1 :]
        new = score_tokens(engine.model, tokens, 1.0)[len(PROMPT) - 1 :]
        expected = [*old[:first], *new[first:]]
        assert max(abs(a - b) for a, b in zip(completion.logprobs, expected, strict=True)) < 1e-4
        spans += 0 < first < count
    assert spans > 0, "the update fell between completions: nothing was tested"


async def test_seeds_repeat_and_no_token_comes_from_other_weights_keys_and_values(engine):
    sampling = SamplingParams(max_tokens=16, seed=7)
    long_prompt = [7 + i % 200 for i in range(160)]
    first = await engine.generate(long_prompt, sampling)
    again = await engine.generate(long_prompt, sampling)
    assert again.token_ids == first.token_ids
    await update(engine, 0.1)
    after = await engine.generate(long_prompt, sampling)
    assert far(engine.model, after, 1.0, long_prompt) < 1e-4


async def test_stop_tokens_and_the_window_end_a_completion(engine):
    plain = await engine.generate(PROMPT, SamplingParams(max_tokens=24, seed=3))
    stopping = SamplingParams(max_tokens=24, seed=3, stop_token_ids=(plain.token_ids[5],))
    stopped = await engine.generate(PROMPT, stopping)
    assert stopped.token_ids == plain.token_ids[: plain.token_ids.index(plain.token_ids[5]) + 1]
    assert stopped.finish_reason is FinishReason.STOP_TOKEN
    cut = await engine.generate([5] * (WINDOW - 4), SamplingParams(max_tokens=24, seed=3))
    assert (len(cut.token_ids), cut.finish_reason) == (4, FinishReason.CONTEXT_FULL)
    with pytest.raises(ValueError, match="257 tokens"):
        await engine.generate([5] * (WINDOW + 1), SamplingParams())


async def test_a_cancelled_call_ends_the_generation(engine):
    long = SamplingParams(max_tokens=200, seed=1)
    calls = [asyncio.create_task(engine.generate(PROMPT, long)) for _ in range(16)]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    await asyncio.sleep(1.0)
    client = engine._server.client
    before = await client.num_tokens()
    await asyncio.sleep(0.3)
    assert await client.num_tokens() == before
    assert client.num_running == 0


async def test_a_token_that_the_engine_lacks_is_refused_and_harms_nothing(engine):
    with pytest.raises(PolicyFailure, match="out of vocabulary") as failure:
        await engine.generate([5000], SamplingParams(max_tokens=2))
    assert not failure.value.retryable
    assert len((await engine.generate(PROMPT, SamplingParams(max_tokens=4))).token_ids) == 4


async def test_a_version_label_without_its_weights_is_detected(engine):
    nudge(engine.model, 0.1)
    version = engine.version + 1
    await engine._prober.expect(version)
    await engine._server._runner.llm.update_weight_version(str(version))
    with pytest.raises(WeightsDiffer, match=f"the vLLM engine does not run version {version}"):
        await engine._prober.prove(engine._server.client, version)
    await update(engine)


async def test_a_failed_load_leaves_the_engine_paused_and_the_next_one_mends_it(engine, tmp_path):
    from agents.serving.errors import Unreachable

    with pytest.raises(Unreachable, match="did not load weights"):
        await engine._server.client.load(tmp_path / "nowhere", 99)
    asked = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=1)))
    await asyncio.sleep(0.3)
    assert not asked.done(), "a paused engine answers nothing"
    await update(engine)
    completion = await asyncio.wait_for(asked, 30)
    assert completion.versions == (engine.version,) * 8
    assert far(engine.model, completion, 1.0) < 1e-4


async def test_an_engine_that_sleeps_answers_with_new_weights_when_all_of_it_is_awake(engine):
    # On a CPU no memory is freed; vLLM counts what sleeps all the same.
    llm = engine._server._runner.llm
    await engine.sleep()
    assert not await llm.is_sleeping(), "it is not configured to"
    engine.sleeps = True
    await engine.sleep()
    assert await llm.is_sleeping()
    asked = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=1)))
    await engine.wake()
    await asyncio.sleep(0.3)
    assert await llm.is_sleeping(), "the cache wakes after the load"
    assert not asked.done()
    await update(engine, 0.1)
    assert not await llm.is_sleeping()
    completion = await asyncio.wait_for(asked, 30)
    assert completion.versions == (engine.version,) * 8
    assert far(engine.model, completion, 1.0) < 1e-4
    engine.sleeps = False


async def test_ctrl_c_is_not_the_engines(engine):
    # A terminal sends it to every process of the group.
    (core,) = engine._server._runner._trees
    for member in core.members():
        os.kill(member.pid, signal.SIGINT)
    await asyncio.sleep(0.5)
    completion = await engine.generate(PROMPT, SamplingParams(max_tokens=8, seed=1))
    assert far(engine.model, completion, 1.0) < 1e-4
    assert engine.take_metrics()["policy/restarts"] == 0


async def test_a_dead_engine_is_restarted_and_its_requests_are_retried(engine):
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    expected = await engine.generate(PROMPT, sampling)
    (core,) = engine._server._runner._trees
    worker = core.members()[-1]
    assert worker.pid != core.pid
    calls = [asyncio.create_task(engine.generate(PROMPT, sampling)) for _ in range(8)]
    await asyncio.sleep(0.1)
    os.kill(worker.pid, signal.SIGKILL)
    completions = await asyncio.wait_for(asyncio.gather(*calls), START_S)
    assert {c.token_ids for c in completions} == {expected.token_ids}
    assert {c.versions for c in completions} == {expected.versions}
    metrics = engine.take_metrics()
    assert metrics["policy/restarts"] == 1
    assert metrics["policy/reissued"] >= 8
    assert not core.exists
    await update(engine)
    assert engine.take_metrics()["sync/max_difference"] < 1e-4


async def test_a_wrong_argument_is_named_before_anything_is_started(model_folder):
    policy = make_policy(new_model(), model_folder, arguments={"max_num_seq": 4})
    hint = r"no argument 'max_num_seq'; did you mean max_num_seqs\?$"
    with pytest.raises(PolicyFailure, match=hint):
        await policy.open()
    await policy.close()


async def test_a_wrong_value_is_reported_in_one_line(model_folder):
    policy = make_policy(new_model(), model_folder, arguments={"block_size": "many"})
    with pytest.raises(PolicyFailure, match="block_size") as failure:
        await policy.open()
    assert "\n" not in str(failure.value)
    await policy.close()


async def test_requests_fail_when_the_policy_is_closed_and_nothing_is_left(engine):
    # The last test: it closes the engine.
    (core,) = engine._server._runner._trees
    mine = [member.pid for member in core.members()]
    assert len(mine) == 2
    guard = engine._server._runner._guard.pid
    memory = shared_memory_of(mine)
    assert memory
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    calls = [asyncio.create_task(engine.generate(PROMPT, sampling)) for _ in range(8)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await engine.close()
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert all(isinstance(end, PolicyFailure) for end in ends)
    assert time.monotonic() - began < 60
    assert not [pid for pid in (*mine, guard) if alive(pid)]
    assert not [path for path in memory if path.exists()]

"""Adapters on a real vLLM server: the base model is loaded once, the adapter at each update."""

from __future__ import annotations

import asyncio
import copy

import pytest
from tiny_served import VOCAB, WINDOW, new_adapted, new_model, nudge, prober_of

from agents.completion import SamplingParams
from agents.serving import ManagedServer, Timeouts, WeightFolders
from agents.vllm import VLLMServerPolicy, VLLMServerProcess
from rl.learner.lora import adapter_config, trained_state
from rl.learner.model import score_tokens

pytest.importorskip("peft")
PROMPT = list(range(20, 60))


@pytest.fixture
async def policy(server_config, model_folder, tmp_path):
    model = new_adapted(str(model_folder))
    adapter = adapter_config(model)
    lora = {"lora_rank": 8, "lora_targets": tuple(adapter["target_modules"])}
    prober = prober_of(model, sampling=SamplingParams())
    policy = VLLMServerPolicy(
        [ManagedServer(prober, runner=VLLMServerProcess(server_config(**lora)))],
        WeightFolders(tmp_path / "weights", adapter=adapter),
        prober,
        context_window=WINDOW,
        timeouts=Timeouts(request_s=420.0),
    )
    policy.model = model
    try:
        await policy.open()
        await policy.load_weights(trained_state(model), 1)
        yield policy
    finally:
        await policy.close()


def scores(model, completion, prompt=PROMPT):
    return score_tokens(model, [*prompt, *completion.token_ids], 1.0)[len(prompt) - 1 :]


def far(found, expected):
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


async def test_adapters_are_transferred_alone_reach_running_requests_and_survive_a_restart(
    policy, tmp_path
):
    model, differences = policy.model, []
    for version in range(2, 22):
        nudge(model)
        await policy.load_weights(trained_state(model), version)
        differences.append(policy.take_metrics()["sync/max_difference"])
    assert len(differences) == 20
    assert max(differences) < 1e-4
    completion = await policy.generate(PROMPT, SamplingParams(max_tokens=24, seed=3))
    assert far(completion.logprobs, scores(model, completion)) < 1e-4
    assert far(completion.logprobs, scores(new_model(), completion)) > 0.1, "the base answered"
    written = {path.name for path in policy._publisher.newest.iterdir()}
    assert written == {"adapter_config.json", "adapter_model.safetensors"}

    await _an_update_reaches_what_runs(policy)

    (managed,) = policy._servers
    await managed._runner.stop()
    after = await policy.generate(PROMPT, SamplingParams(max_tokens=24, seed=4))
    assert after.versions == (22,) * 24
    assert far(after.logprobs, scores(model, after)) < 1e-4
    assert policy.take_metrics()["policy/restarts"] == 1


async def _an_update_reaches_what_runs(policy):
    """As with whole weights: each token has the version of the adapter that sampled it."""
    sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
    before, client = copy.deepcopy(policy.model), policy._servers[0].client
    had = await client.num_tokens()
    prompts = [[n % VOCAB, *PROMPT[1:]] for n in range(120)]
    calls = [asyncio.create_task(policy.generate(prompt, sampling)) for prompt in prompts]
    while await client.num_tokens() < had + len(calls) * len(PROMPT) + 500:
        await asyncio.sleep(0.01)
    nudge(policy.model, 0.1)
    await policy.load_weights(trained_state(policy.model), 22)
    spans = 0
    for prompt, completion in zip(prompts, await asyncio.gather(*calls), strict=True):
        first = completion.versions.count(21)
        assert completion.versions == (21,) * first + (22,) * (len(completion.versions) - first)
        old, new = (scores(model, completion, prompt) for model in (before, policy.model))
        assert far(completion.logprobs, [*old[:first], *new[first:]]) < 1e-4
        if 0 < first < len(completion.versions):
            spans += 1
            assert far(completion.logprobs[first:], old[first:]) > 0.01, "the update is too small"
    assert spans > 0, "the update fell between completions: nothing was tested"

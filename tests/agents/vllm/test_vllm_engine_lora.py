"""Adapters in the engine of this process, where this interpreter has vLLM (see the engine's)."""

from __future__ import annotations

import asyncio
import copy

import pytest
from tiny_served import VOCAB, WINDOW, new_adapted, new_model, nudge, prober_of

from agents.completion import SamplingParams
from agents.serving import Timeouts, WeightFolders
from agents.vllm import EngineConfig, VLLMEnginePolicy, VLLMEngineProcess
from rl.learner.lora import adapter_config, trained_state
from rl.learner.model import score_tokens

pytest.importorskip("vllm", reason="vLLM is not installed for this interpreter")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = list(range(20, 60))
START_S = 420.0


def scores(model, completion, prompt=PROMPT):
    return score_tokens(model, [*prompt, *completion.token_ids], 1.0)[len(prompt) - 1 :]


def far(found, expected):
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


async def test_adapters_are_transferred_alone_and_reach_running_requests(model_folder, tmp_path):
    model = new_adapted(str(model_folder))
    adapter = adapter_config(model)
    config = EngineConfig(
        model=str(model_folder),
        context_window=WINDOW,
        dtype="float32",
        log=tmp_path / "engine.log",
        lora_rank=8,
        lora_targets=tuple(adapter["target_modules"]),
    )
    policy = VLLMEnginePolicy(
        VLLMEngineProcess(config),
        WeightFolders(adapter=adapter),
        prober_of(model, sampling=SamplingParams()),
        context_window=WINDOW,
        timeouts=Timeouts(request_s=START_S),
        start_s=START_S,
    )
    try:
        await policy.open()
        differences = []
        for version in range(10):
            nudge(model)
            await policy.load_weights(trained_state(model), version)
            differences.append(policy.take_metrics()["sync/max_difference"])
        assert max(differences) < 1e-4
        sampling = SamplingParams(max_tokens=WINDOW - len(PROMPT), seed=5)
        before = copy.deepcopy(model)
        prompts = [[n % VOCAB, *PROMPT[1:]] for n in range(120)]
        calls = [asyncio.create_task(policy.generate(prompt, sampling)) for prompt in prompts]
        await asyncio.sleep(1.0)
        nudge(model, 0.1)
        await policy.load_weights(trained_state(model), 10)
        spans = 0
        for prompt, completion in zip(prompts, await asyncio.gather(*calls), strict=True):
            first = completion.versions.count(9)
            old, new = (scores(each, completion, prompt) for each in (before, model))
            assert far(completion.logprobs, [*old[:first], *new[first:]]) < 1e-4
            spans += 0 < first < len(completion.versions)
        assert spans > 0, "the update fell between completions: nothing was tested"
        completion = await policy.generate(PROMPT, SamplingParams(max_tokens=24, seed=3))
        assert far(completion.logprobs, scores(new_model(), completion)) > 0.1
    finally:
        await policy.close()

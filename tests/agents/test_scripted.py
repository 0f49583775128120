"""The scripted policy implements the contract of a policy."""

from __future__ import annotations

import asyncio
import time

import pytest

from agents.completion import Completion, FinishReason, SamplingParams
from agents.scripted import ScriptedPolicy


@pytest.mark.parametrize(
    ("script", "options", "tokens", "reason"),
    [
        ([5, 6, 1], {"stop_token_ids": (1,)}, (5, 6, 1), FinishReason.STOP_TOKEN),
        ([5, 6], {"stop_token_ids": (1,)}, (5, 6), FinishReason.LENGTH),
        ([5, 6], {"stop": ("x",)}, (5, 6), FinishReason.STOP_STRING),
        ([5, 6, 1], {"stop": ("x",), "stop_token_ids": (1,)}, (5, 6, 1), FinishReason.STOP_TOKEN),
        ([5, 6, 7], {"max_tokens": 2}, (5, 6), FinishReason.LENGTH),
        ([5, 1, 7], {"max_tokens": 2, "stop_token_ids": (1,)}, (5, 1), FinishReason.STOP_TOKEN),
        ([5, 1, 7], {"stop_token_ids": (1,)}, (5, 1), FinishReason.STOP_TOKEN),
        ([5, 6], {"max_tokens": 2}, (5, 6), FinishReason.LENGTH),
        ([], {}, (), FinishReason.LENGTH),
    ],
)
async def test_a_script_is_cut_and_ends_as_a_policys_completion_would(
    script, options, tokens, reason
):
    answer = await ScriptedPolicy(lambda session, ids: script).generate(
        [1, 2], SamplingParams(**options)
    )
    assert answer == Completion(tokens, (0.0,) * len(tokens), (0,) * len(tokens), reason)


async def test_the_script_sees_session_and_prompt_and_versions_are_recorded():
    policy = ScriptedPolicy(lambda session, ids: [len(ids), int(session or 0)])
    await policy.load_weights(None, 4)
    assert policy.version == 4
    answer = await policy.generate([9, 9, 9], SamplingParams(), "8")
    assert (answer.token_ids, answer.versions) == ((3, 8), (4, 4))


async def test_a_delay_is_waited_for_by_everyone_at_once():
    policy = ScriptedPolicy(lambda session, ids: [1], delay_s=0.2)
    started = time.perf_counter()
    await asyncio.gather(*(policy.generate([1], SamplingParams()) for _ in range(50)))
    assert 0.2 <= time.perf_counter() - started < 5

"""docs/external-agents.md: its agent plays an episode that its recorder records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents.completion import SamplingParams

pytest.importorskip("openai")
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "external-agents.md").read_text("utf-8")


async def test_its_agent_and_its_recorder_work_together(renderer, logging_policy):
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/external-agents.md", "exec"), names)
    rewards = []

    async def program(base_url):
        task = {"question": "Which colour has box 3?", "answer": "green"}
        rewards.append(await names["play"](task, base_url))

    policy = logging_policy(lambda prompt: "green")
    sampling = SamplingParams(max_tokens=40)
    segments, posted = await names["record"](renderer, policy, sampling, program)
    await names["CLIENT"].close()
    assert rewards == [1.0]
    assert posted is None
    (segment,) = segments
    assert sum(segment.loss_mask) == len("green") + 1

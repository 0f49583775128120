"""docs/external-agents.md: its agent plays an episode that its recorder records."""

from __future__ import annotations

import asyncio
import os
import re
import select
from pathlib import Path

import pytest

from agents.completion import SamplingParams

pytest.importorskip("openai")
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "external-agents.md").read_text("utf-8")


def code_of_page() -> dict:
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/external-agents.md", "exec"), names)
    return names


async def test_its_agent_and_its_recorder_work_together(renderer, logging_policy):
    names = code_of_page()
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


@pytest.mark.parametrize("ending", ["exit 3", "wait", "wait, and asyncio is late"])
async def test_its_process_group_ends_with_the_agent(tmp_path, ending):
    names = code_of_page()
    os.mkfifo(tmp_path / "held")
    # The second program holds this file open as long as it runs.
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        program = f'exec 3> "$HELD"; sleep 600 & echo x >&3; {ending.partition(",")[0]}'
        environment = {"HELD": str(tmp_path / "held")}
        playing = asyncio.create_task(names["run_agent"](["sh", "-c", program], environment, 60))
        if "late" in ending:
            # The loop's thread waits, so the programs run before asyncio returns the process.
            while select.select([held], [], [], 0.2) != ([held], [], []):
                await asyncio.sleep(0)
        else:
            assert await asyncio.to_thread(select.select, [held], [], [], 60) == ([held], [], [])
        if ending == "exit 3":
            assert await playing == 3
        else:
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
        assert os.read(held, 9) == b"x\n"
        assert await asyncio.to_thread(select.select, [held], [], [], 30) == ([held], [], [])
        assert os.read(held, 9) == b"", "no process holds the file"
    finally:
        os.close(held)
    await names["CLIENT"].close()

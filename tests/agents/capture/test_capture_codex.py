"""Codex, OpenAI's open-source agent, plays episodes: its requests are recorded token by token.

It needs the program ``codex`` (``npm install -g @openai/codex``), and no network besides the
endpoint on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal

import pytest

CODEX = shutil.which("codex")
pytestmark = [
    pytest.mark.skipif(CODEX is None, reason="codex is not installed: npm install -g @openai/codex")
]
LIMIT_S = 240
CONFIG = """
model = "policy"
model_provider = "turnwise"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.turnwise]
name = "turnwise"
base_url = "{base_url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def call(name, **arguments):
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


@pytest.fixture
def codex(tmp_path):
    """Run Codex with a prompt in a folder that holds box.txt; returns the folder."""

    async def codex(base_url, prompt):
        home, work = tmp_path / "home", tmp_path / "work"
        home.mkdir()
        work.mkdir()
        (work / "box.txt").write_text("red")
        (home / "config.toml").write_text(CONFIG.format(base_url=base_url))
        # The directory with the program, and that of its interpreter.
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
        words = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        process = await asyncio.create_subprocess_exec(
            *(CODEX, *words, "-C", str(work), prompt),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                output, _ = await process.communicate()
        finally:
            # The program that npm installs starts another one, which would go on.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        assert process.returncode == 0, output.decode()[-2000:]
        return work

    return codex


async def test_its_session_is_one_conversation(serve, logging_policy, exact, codex):
    texts = iter(
        [
            "<think>First look.</think>I look."
            + call("exec_command", cmd="cat box.txt")
            + call("exec_command", cmd="ls"),
            call("exec_command", cmd="printf green > box.txt"),
            "It is green.",
        ]
    )
    policy = logging_policy(lambda prompt: next(texts))
    async with serve(policy, context_length=10_000_000) as (agent, _, server):
        work = await codex(agent.base_url, "Make it green.")
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert (work / "box.txt").read_text() == "green"
    assert len(capture.segments) == 1
    first = capture.turns[0]
    assert [each.name for each in first.calls] == ["exec_command"] * 2
    assert "red" in first.calls[0].result
    assert "box.txt" in first.calls[1].result


async def test_its_sub_agent_is_another_conversation(serve, logging_policy, exact, codex):
    def say(prompt):
        own = "Write green" in prompt.rpartition("<|im_start|>user")[2]
        results = prompt.count("<tool_response>")
        if own:
            return call("exec_command", cmd="printf green > box.txt")
        if 'multi_agent_v1.spawn_agent", "arguments' not in prompt and results:
            return "It is written."
        if results == 0:
            return call("multi_agent_v1.spawn_agent", message="Write green into box.txt.")
        if results == 1:
            (name,) = re.findall(r'"agent_id":\s*"([^"]+)"', prompt)
            return call("multi_agent_v1.wait_agent", targets=[name], timeout_ms=60_000)
        return "It is green."

    policy = logging_policy(say)
    async with serve(policy, context_length=10_000_000) as (agent, _, server):
        work = await codex(agent.base_url, "Make it green.")
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert (work / "box.txt").read_text() == "green"
    assert [segment.parent for segment in capture.segments] == [None, None]
    assert sorted(turn.segment for turn in capture.turns) == [0, 0, 0, 1, 1]

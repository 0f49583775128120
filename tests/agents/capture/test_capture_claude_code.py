"""Claude Code plays episodes: its requests are recorded token by token.

It needs the program ``claude`` (``npm install -g @anthropic-ai/claude-code``), and no network
besides the endpoint on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal

import pytest

CLAUDE = shutil.which("claude")
pytestmark = [
    pytest.mark.skipif(
        CLAUDE is None,
        reason="claude is not installed: npm install -g @anthropic-ai/claude-code",
    )
]
LIMIT_S = 240


def call(name, **arguments):
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


@pytest.fixture
def work(tmp_path):
    """The folder in which it works; it holds box.txt."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "box.txt").write_text("red")
    return folder


@pytest.fixture
def claude(tmp_path, work):
    """Run Claude Code with a prompt."""

    async def claude(base_url, prompt, *words):
        home = tmp_path / "home"
        home.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        allowed = ("--allowedTools", "Agent,Bash,Edit,Read")
        process = await asyncio.create_subprocess_exec(
            *(CLAUDE, "--print", prompt, *allowed, *words),
            cwd=work,
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
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        assert process.returncode == 0, output.decode()[-2000:]
        return output.decode()

    return claude


async def test_its_session_is_one_conversation(serve, logging_policy, exact, claude, work):
    file = str(work / "box.txt")
    texts = iter(
        [
            "<think>First look.</think>I look." + call("Bash", command="ls") + call("Bash"),
            call("Read", file_path=file),
            # It adds the default of replace_all to this call in its histories.
            call("Edit", file_path=file, old_string="red", new_string="green"),
            "It is green.",
        ]
    )
    policy = logging_policy(lambda prompt: next(texts))
    async with serve(policy, context_length=10_000_000) as (agent, _, server):
        printed = await claude(agent.base_url, "Make it green.", "--bare")
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert (work / "box.txt").read_text() == "green"
    assert printed.strip() == "It is green."
    assert len(capture.segments) == 1
    assert [len(turn.calls) for turn in capture.turns] == [2, 1, 1, 0]
    assert "box.txt" in capture.turns[0].calls[0].result
    assert "red" in capture.turns[1].calls[0].result


async def test_its_sub_agent_is_another_conversation(serve, logging_policy, exact, claude, work):
    def say(prompt):
        first = prompt.count("<|im_start|>assistant") == 1
        if "SUB-TASK" in prompt.partition("<|im_start|>assistant")[0]:
            return call("Bash", command="printf green > box.txt") if first else "It is written."
        task = {"description": "write", "subagent_type": "general-purpose"}
        return call("Agent", prompt="SUB-TASK: write green.", **task) if first else "It is green."

    policy = logging_policy(say)
    async with serve(policy, context_length=10_000_000) as (agent, _, server):
        await claude(agent.base_url, "Make it green.")
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert (work / "box.txt").read_text() == "green"
    assert [segment.parent for segment in capture.segments] == [None, None]
    assert sorted(turn.segment for turn in capture.turns) == [0, 0, 1, 1]

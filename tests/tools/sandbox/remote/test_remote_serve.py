"""``python -m tools.sandbox serve`` as a separate process: its options and its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from tools.sandbox import SandboxFailure, SandboxUnavailable, make_sandbox
from tools.sandbox.__main__ import main

REPOSITORY = Path(__file__).resolve().parents[4]
TOKEN = "a-token-of-some-length"


def launch(*options: str, token: str | None = None) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "TURNWISE_SANDBOX_TOKEN"}
    if token is not None:
        environment["TURNWISE_SANDBOX_TOKEN"] = token
    return subprocess.Popen(
        [sys.executable, "-m", "tools.sandbox", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
    )


@pytest.fixture
def served():
    """Function that starts a server and returns its process and URL."""
    processes = []

    def start(*options: str, token: str | None = None) -> tuple[subprocess.Popen, str]:
        process = launch("--backend", "bwrap", *options, token=token)
        processes.append(process)
        line = process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+) serves bwrap, isolation namespaces, ", line)
        assert found, line + process.stderr.read()
        assert line.endswith(f"{'with' if token else 'without'} a token\n")
        return process, found[1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_everything_it_runs(served, number):
    process, url = await asyncio.to_thread(served, "--workers", "2", token=TOKEN)
    async with make_sandbox(url, token=TOKEN) as sandbox:
        assert (await sandbox.run("print(6 * 7)")).stdout == "42\n"
        async with sandbox.session() as session:
            await session.run("x = 1")
            run = asyncio.create_task(sandbox.run("import time; time.sleep(4)"))
            await asyncio.sleep(0.3)
            below = descendants(process.pid)
            assert len(below) > 5
            ended = time.monotonic()
            process.send_signal(number)
            assert await asyncio.to_thread(process.wait, 10) == 0
            assert time.monotonic() - ended < 10
            with pytest.raises(SandboxFailure):
                await run
            assert session.over
    assert not [pid for pid in below if alive(pid)]
    assert process.stderr.read() == ""


async def test_a_killed_server_leaves_nothing(served):
    process, url = await asyncio.to_thread(served, token=TOKEN)
    async with make_sandbox(url, token=TOKEN) as sandbox:
        run = asyncio.create_task(sandbox.run("import time; time.sleep(4)"))
        await asyncio.sleep(0.3)
        below = descendants(process.pid)
        process.kill()
        with pytest.raises(SandboxFailure):
            await run
    deadline = time.monotonic() + 30
    while any(map(alive, below)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_token_file_and_limits(served, tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    # The fixture's expectation of the line is about the environment's token.
    process = launch("--backend", "bwrap", "--token-file", str(path), "--memory-mb", "128")
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        url = line.split()[0]
        assert line.endswith("with a token\n")
        with pytest.raises(SandboxUnavailable, match="token"):
            async with make_sandbox(url):
                pass
        async with make_sandbox(url, token=TOKEN) as sandbox:
            assert sandbox.limits.memory_mb == 128
    finally:
        process.kill()
        process.communicate()


async def test_one_client_cannot_take_all_sessions(served, monkeypatch):
    _, url = await asyncio.to_thread(served, "--max-sessions", "4", "--max-client-sessions", "2")
    async with contextlib.AsyncExitStack() as stack:
        greedy = await stack.enter_async_context(make_sandbox(url))
        again = await stack.enter_async_context(make_sandbox(url))  # of the same address
        first = await stack.enter_async_context(greedy.session())
        await stack.enter_async_context(again.session())
        third = asyncio.create_task(stack.enter_async_context(greedy.session()))
        elsewhere = functools.partial(aiohttp.TCPConnector, local_addr=("127.0.0.2", 0))
        monkeypatch.setattr(aiohttp, "TCPConnector", elsewhere)
        async with make_sandbox(url) as other, other.session() as one, await one.fork() as two:
            assert [(await session.run("6 * 7")).value for session in (one, two)] == ["42", "42"]
            assert (await other.health()).sessions == 4
            assert not third.done()
        await first.close()
        assert (await (await third).run("1")).value == "1"


async def test_loopback_needs_no_token(served):
    _, url = await asyncio.to_thread(served)
    async with make_sandbox(url) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        (["--host", "0.0.0.0"], None, "--host 0.0.0.0 can be reached by other machines"),
        (["--host", "::"], None, "TURNWISE_SANDBOX_TOKEN or pass --token-file"),
        (["--host", "example.org"], None, "can be reached by other machines"),
        ([], "short", "holds 5 characters: a token has at least 16"),
        ([], "", "holds 0 characters"),
        ([], "two lines of\na long token", "in one line of ASCII"),
        (["--token-file", "/nowhere"], None, "--token-file /nowhere cannot be read"),
        (["--memory-mb", "1"], None, "limits.memory_mb"),
        (["--max-waiting", "0"], None, "max_waiting (0) must be >= 1"),
        (["--max-client-sessions", "65"], None, "max_client_sessions (65) must be in [1, 64]"),
        (["--max-client-sessions", "0"], None, "max_client_sessions (0) must be in [1, 64]"),
        (["--backend", "landlock", "--min-isolation", "namespaces"], None, "isolation below"),
    ],
)
def test_a_mistake_is_reported_in_one_line(options, token, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sandbox", "serve", "--port", "0", *options])
    monkeypatch.delenv("TURNWISE_SANDBOX_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("TURNWISE_SANDBOX_TOKEN", token)
    assert main() == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("error: ") and errors.count("\n") == 1 and message in errors


def test_help_names_every_option(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sandbox", "serve", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    for option in ("--host", "--port", "--token-file", "--token-env", "--max-waiting", "--python"):
        assert option in text
    assert "--max-client-sessions" in text


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"

"""MCP servers' tools, against a real server over stdio and HTTP, by the SDK that is installed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
import pytest

import envs
import tools
from envs.base.loop import loop_thread
from tools import ToolContext, ToolFailure
from tools.limits import CallLimits
from tools.mcp import Address, McpServer, connection, server

SCRIPT = Path(__file__).parents[2] / "helpers" / "mcp_server.py"
COMMAND = f"{sys.executable} {SCRIPT}"
ONE, TWO = ToolContext(session="one"), ToolContext(session="two")


@pytest.fixture(autouse=True)
def nothing_is_left():
    loop_thread.run(asyncio.sleep(0))  # One for all, from the first use on.
    before = (
        set(processes.children()),
        threading.active_count(),
        len(list(Path("/proc/self/fd").iterdir())),
    )
    yield
    deadline = time.monotonic() + 5
    while True:
        # The SDK's own pool of HTTP connections may close a socket after its context.
        after = (
            set(processes.children()),
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
        )
        if after[0] <= before[0] and after[1:] <= before[1:]:
            return
        assert time.monotonic() < deadline, f"{before} became {after}"
        time.sleep(0.05)


def listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def serve(port: int) -> subprocess.Popen[bytes]:
    """A server on a port, when it listens."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--port", str(port)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not listening(port):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def http(port):
    process = serve(port)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def command(**options) -> McpServer:
    return McpServer(Address(command=COMMAND), **options)


async def pid(made: McpServer, context: ToolContext | None = None) -> int:
    return (await made.tools["process"]({}, context)).data["pid"]


async def end(process: int, made: McpServer, key: str) -> None:
    """Kill a server, and wait until it is missed."""
    os.kill(process, 9)
    while not made._connections[key].result().lost:
        await asyncio.sleep(0.02)


# ---- what an agent says ---------------------------------------------------------------------


async def test_no_arguments_of_one_agent_end_the_connection_of_all():
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    async with command() as made:
        before = await pid(made, ONE)
        for arguments, says in (
            (json.loads(r'{"a": "\ud800"}'), "half of a character"),
            ({"a": 1, "\udfff": 2}, "half of a character"),
            ({"a": deep}, "nested more than 64 deep"),
            ({"a": {"b": deep}}, "nested more than 64 deep"),
        ):
            result = await made.tools["add"](arguments)
            assert result.error is not None and says in result.error
            assert result.text == f"Error: add: {result.error}"
        assert (await made.tools["note"]({"text": "\U0001f600 ü"})).text == "\U0001f600 ü"
        assert await pid(made, ONE) == before


# ---- what a tool says -----------------------------------------------------------------------


async def test_every_tool_of_a_server_over_one_connection():
    async with command() as made:
        add, note = made.tools["add"], made.tools["note"]
        assert list(made.tools) == [
            *("add", "note", "process", "variable", "refuse", "picture", "wait", "die")
        ]
        assert add.description == "Add two numbers."
        assert add.parameters["required"] == ["a"]
        assert add.parameters["properties"]["b"] == {"default": 1, "title": "B", "type": "integer"}
        assert not add.stateful and add.forkable
        result = await add({"a": 4, "b": 5})
        assert (result.text, result.data, result.error) == ("9", {"result": "9"}, None)
        assert [(await note({"text": word})).text for word in "xy"] == ["x", "x\ny"]
        assert (await made.tools["picture"]({})).text == "[image: image/png]"
        assert (await made.tools["variable"]({"name": "PYTHONPATH"})).text == "nothing"
        wrong = await add({"a": "many"})
        assert wrong.text == wrong.error and "valid integer" in wrong.text
        refused = await made.tools["refuse"]({})
        assert refused.error is not None and refused.error.startswith("Error executing tool refuse")
        assert await pid(made, ONE) == await pid(made, TWO), "episodes share it"
        await add.fork("one", "three")
        await add.end("one")
        assert (await add({"a": 1}, ONE)).text == "2"
        await a_call_has_a_deadline_and_delays_no_other(made)
        with pytest.raises(ToolFailure, match="was opened on another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(add({"a": 1})))


async def a_call_has_a_deadline_and_delays_no_other(made: McpServer) -> None:
    made.limits = CallLimits(timeout_s=2.0)
    slow = asyncio.create_task(made.tools["wait"]({"seconds": 60}))
    assert (await made.tools["add"]({"a": 1})).text == "2"
    assert not slow.done()
    with pytest.raises(ToolFailure, match=r"'wait' took longer than timeout_s \(2 s\)") as late:
        await slow
    assert late.value.retryable
    with pytest.raises(ToolFailure, match="the caller's deadline"):
        await made.tools["wait"]({"seconds": 60}, ToolContext(timeout_s=0.05))
    assert (await made.tools["add"]({"a": 2})).text == "3"


async def test_one_tool_by_plain_values_is_opened_and_closed():
    tool = tools.make("mcp", command=f"{COMMAND} --one variable", env={"DESK": "oak"})
    assert (tool.name, tool.description) == ("variable", "Read a variable of the environment.")
    with pytest.raises(ToolFailure, match=r"is not open: await open\(\) first") as unopened:
        await tool({"name": "DESK"})
    assert not unopened.value.retryable
    for _ in range(2):
        await tool.open()
    assert (await tool({"name": "DESK"})).text == "oak"
    for _ in range(2):
        await tool.close()
    with pytest.raises(ToolFailure, match="is not open"):
        await tool({"name": "DESK"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs a command"),
        ({"command": "x", "url": "http://x"}, "give one of the two"),
        ({"command": 5}, r"command \(5\) must be a text"),
        ({"url": "desk:80"}, r"url \('desk:80'\) must begin with http"),
        ({"url": "http://x", "env": {"a": "b"}}, "env is for a command"),
        ({"command": "x", "headers": {"a": "b"}}, "headers are for a url"),
        ({"command": "x", "max_sessions": -1}, r"max_sessions \(-1\) must be >= 0"),
        ({"command": "x", "timeout_s": 0.0}, r"timeout_s \(0.0\) must be > 0"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        tools.make("mcp", **options)


# ---- servers that do not start, hang or end -------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says", "retryable"),
    [
        ({"command": "no-such-server --x"}, "does not start .FileNotFoundError", False),
        (
            {"command": f"{sys.executable} -c 'import no_such_module'"},
            "does not start: ModuleNotFoundError: No module named 'no_such_module'",
            False,
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be reached .ConnectError", True),
        (
            {"command": f"{COMMAND} --slow-start 60", "timeout_s": 0.3},
            "did not answer within 0.3 s",
            True,
        ),
    ],
)
def test_a_server_that_does_not_start_is_a_failure(options, says, retryable):
    before = time.monotonic()
    with pytest.raises(ToolFailure, match=says) as failed:
        tools.make("mcp", **options)
    assert failed.value.retryable is retryable
    assert time.monotonic() - before < 20


async def test_a_server_that_ends_is_started_again_a_bounded_number_of_times(monkeypatch):
    monkeypatch.setattr(server, "MOST_RESTARTS", 3)
    async with command() as made:
        first = await pid(made)
        with pytest.raises(ToolFailure, match="ended during a call: out of coffee") as ended:
            await made.tools["die"]({})
        assert ended.value.retryable
        second = await pid(made)
        await end(second, made, "")
        assert len({first, second, await pid(made)}) == 3, "one that ended meanwhile costs no call"
        made.limits = CallLimits(timeout_s=60.0, retries=1)
        assert len(made._restarts) == 2
        with pytest.raises(ToolFailure, match="ended during a call"):
            await made.tools["die"]({})
        assert len(made._restarts) == 3, "the second attempt had a server of its own"
        says = "was started 3 times in the last 60 s: out of coffee"
        with pytest.raises(ToolFailure, match=says) as bounded:
            await made.tools["add"]({"a": 1})
        assert bounded.value.retryable
        made._restarts[0] -= 61
        made._count_restart(None)
        with pytest.raises(ToolFailure, match="was started 3 times"):
            made._count_restart(None)


async def test_a_stubborn_server_is_killed(caplog):
    made = McpServer(Address(command=f"{COMMAND} --stubborn"))
    await made.open()
    before = time.monotonic()
    await made.close()
    assert time.monotonic() - before < connection.CLOSE_S
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---- episodes -------------------------------------------------------------------------------


async def test_each_episode_may_have_a_server_of_its_own():
    before = set(processes.children())
    async with command(max_sessions=2) as made:
        note, process = made.tools["note"], made.tools["process"]
        assert note.stateful and not note.forkable
        nameless = await pid(made)
        assert not made._connections, "a call without an episode leaves nothing behind"
        both = await asyncio.gather(pid(made, ONE), pid(made, TWO))
        assert len({nameless, *both}) == 3
        assert (await note({"text": "a"}, ONE)).text == "a"
        assert (await note({"text": "b"}, ONE)).text == "a\nb"
        assert (await note({"text": "c"}, TWO)).text == "c"
        with pytest.raises(ToolFailure, match="cannot copy an episode") as uncopied:
            await note.fork("one", "three")
        assert not uncopied.value.retryable
        await note.fork("four", "five")
        with pytest.raises(ToolFailure, match="'note' took longer than the caller's deadline"):
            await note({"text": "d"}, ToolContext(session="three", timeout_s=0.2))
        for _ in range(2):
            await process.end("three")
            await process.end("one")
        assert set(processes.children()) - before == {both[1]}
        assert made._places._value == 1
        await end(both[1], made, "two")
        with pytest.raises(ToolFailure, match="has ended, and with it the") as lost:
            await note({"text": "e"}, TWO)
        assert lost.value.retryable


# ---- over HTTP ------------------------------------------------------------------------------


async def test_over_http_as_over_stdio(http):
    tool = tools.make("mcp", url=http, tool="add", headers={"X-Desk": "oak"})
    await tool.open()
    assert (await tool({"a": 4, "b": 5})).text == "9"
    assert "valid integer" in (await tool({"a": "many"})).error
    await tool.close()
    async with McpServer(Address(url=http), max_sessions=2) as made:
        assert await pid(made, ONE) == await pid(made, TWO), "a session each, of one server"
        assert len(made._connections) == 2
        await made.tools["add"].end("one")
        slow = made.tools["wait"]({"seconds": 60}, ToolContext("two", timeout_s=0.2))
        with pytest.raises(ToolFailure, match="the caller's deadline"):
            await slow


def test_a_tool_that_is_not_there_is_a_mistake_of_its_user(http):
    with pytest.raises(ValueError, match=r"'ad'.*Did you mean 'add'\? It has: add, note, process"):
        tools.make("mcp", url=http, tool="ad")


def test_an_episode_calls_a_servers_tool_by_name(http):
    env = envs.make("math", tools=f"mcp(url={http!r}, tool='add')", max_turns=3)
    try:
        env.reset(seed=0, options={"task": 0})
        step = env.step('<add> {"a": 20, "b": 3} </add>')
        assert "23" in step.observation
        assert step.info["tool_calls"][0].arguments == {"a": 20, "b": 3}
        assert step.info["tool_calls"][0].error is None
    finally:
        env.close()


async def test_an_http_server_that_was_restarted_is_found_again():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = serve(port)
    try:
        address = Address(url=f"http://127.0.0.1:{port}/mcp")
        async with McpServer(address, timeout_s=10.0, retries=1) as made:
            assert await pid(made) == process.pid
            process.kill()
            process.wait()
            with pytest.raises(ToolFailure) as away:
                await pid(made)
            assert away.value.retryable
            process = await asyncio.to_thread(serve, port)
            assert await pid(made) == process.pid
    finally:
        process.kill()
        process.wait()

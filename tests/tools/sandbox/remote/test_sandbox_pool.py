"""The sandboxes of two real servers as one, also when one of them is lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import pytest_asyncio
from served_sandboxes import TOKEN, serving

from tools.builtin.python import PythonTool
from tools.sandbox import (
    CallTest,
    Limits,
    SandboxFailure,
    SandboxUnavailable,
    SessionOver,
    make_sandbox,
)
from tools.sandbox.remote import pool_session, transport
from tools.tool import ToolContext

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes():
    """Two sandboxes, of which the second has twice the workers."""
    async with (
        make_sandbox("bwrap", workers=1, max_sessions=6) as one,
        make_sandbox("bwrap", workers=2, max_sessions=6) as two,
    ):
        yield one, two


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(transport, "_RETRY_S", 0.05)
    monkeypatch.setattr(pool_session, "DOWN_S", 1.0)


@contextlib.asynccontextmanager
async def pool(sandboxes, **options):
    """The pool, and for each of its servers a function that ends it."""
    async with contextlib.AsyncExitStack() as stack:
        urls, ends = [], []
        for sandbox in sandboxes:
            own = contextlib.AsyncExitStack()
            stack.push_async_callback(own.aclose)
            url, _ = await own.enter_async_context(serving(sandbox))
            urls.append(url)
            ends.append(own.aclose)
        async with make_sandbox(", ".join(urls), token=TOKEN, **options) as made:
            yield made, ends, urls


async def runs(sandboxes):
    return [(await sandbox.health()).runs for sandbox in sandboxes]


async def test_work_goes_to_the_least_busy_server_for_its_workers(sandboxes):
    async with pool(sandboxes) as (made, _, _):
        before = await runs(sandboxes)
        results = await asyncio.gather(*(made.run(f"print({i})") for i in range(30)))
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(30)]
        one, two = (b - a for a, b in zip(before, await runs(sandboxes), strict=True))
        assert (one, two) == (10, 20)
        verdict = await made.grade("def f(x):\n    return x", [CallTest((1,), 1)], "f")
        assert verdict.passed
        assert (made.backend, made.isolation) == ("bwrap", "namespaces")
        total = await made.health()
        assert total.runs == sum(await runs(sandboxes))


async def test_runs_of_a_lost_server_are_repeated_on_the_other(sandboxes):
    async with pool(sandboxes) as (made, ends, urls):
        slow = [asyncio.create_task(made.run("import time; time.sleep(0.7)")) for _ in range(3)]
        await asyncio.sleep(0.3)
        await ends[1]()
        results = await asyncio.gather(*slow, *(made.run("print(1)") for _ in range(6)))
        assert {result.status for result in results} == {"ok"}
        known, before = await made.health(), await runs(sandboxes)
        # It gets no work for a while, then one try, and work again when it is there again.
        await asyncio.gather(*(made.run("print(1)") for _ in range(6)))
        assert (await runs(sandboxes))[1] == before[1]
        assert (await made.health()).since(known).runs == 6
        async with serving(sandboxes[1], port=int(urls[1].rpartition(":")[2])):
            await asyncio.sleep(1.1)
            await asyncio.gather(*(made.run("print(1)") for _ in range(6)))
            assert (await runs(sandboxes))[1] > before[1]
        await ends[0]()
        with pytest.raises(SandboxFailure):
            await made.run("print(1)")


async def test_a_session_is_one_servers_and_restarts_on_another(sandboxes):
    async with pool(sandboxes) as (made, ends, _):
        session, other = made.session({"a": "text"}), made.session()
        assert session.over
        with pytest.raises(SessionOver, match="was not started"):
            await session.run("1")
        await session.start()
        await other.start()
        assert [member.used for member in made._members] == [1, 1]
        await session.run("x = open('a').read()")
        twin, frozen = await session.fork(), await session.snapshot()
        assert [member.used for member in made._members] == [2, 1]
        await twin.run("x += '!'")
        assert ((await twin.run("x")).value, (await session.run("x")).value) == (
            "'text!'",
            "'text'",
        )
        # A session of the other server moves to that of the snapshot.
        await other.restore(frozen)
        assert (await other.run("x")).value == "'text'"
        assert [member.used for member in made._members] == [3, 0]
        call = asyncio.create_task(session.run("import time; time.sleep(20)", wall_s=30))
        await asyncio.sleep(0.3)
        await ends[0]()
        with pytest.raises(SandboxFailure, match="state is lost"):
            await call
        assert session.over
        await session.restart()
        assert (await session.run("open('a').read()")).value == "'text'"
        for one in (session, twin, other, frozen):
            await one.close()
        assert [member.used for member in made._members] == [0, 0]


async def test_the_python_tool_works_over_it(sandboxes):
    async with pool(sandboxes) as (made, ends, _):
        tool = PythonTool(made)
        for name in ("one", "two", "three"):
            await tool({"code": f"x = {len(name)}"}, ToolContext(session=name))
        assert [member.used for member in made._members] == [1, 2]
        await tool.fork("one", "copy")
        assert (await tool({"code": "x"}, ToolContext(session="copy"))).text == "3"
        await ends[0]()
        assert (await tool({"code": "x"}, ToolContext(session="two"))).text == "3"
        assert (await tool({"code": "print(7)"}, ToolContext(session="new"))).text == "7"
        await tool.close()


async def test_what_cannot_be_a_pool_is_one_line(sandboxes):
    async with pool(sandboxes) as (_, _, urls):
        with pytest.raises(ValueError, match=r"^sandbox \(.*\) names a server twice$"):
            make_sandbox(f"{urls[0]},{urls[0]}")
        with pytest.raises(ValueError, match=r"must be http\(s\)://HOST:PORT"):
            make_sandbox(f"{urls[0]},elsewhere")
        with pytest.raises(ValueError, match=r"workers \(2\) is for the server"):
            make_sandbox(",".join(urls), workers=2)
        with pytest.raises(SandboxUnavailable, match="no sandbox answers at"):
            await make_sandbox(f"{urls[0]},http://127.0.0.1:1", token=TOKEN).start()
        with pytest.raises(ValueError, match=r"limits.memory_mb \(512\).*\(256\)"):
            await make_sandbox(",".join(urls), Limits(memory_mb=512), token=TOKEN).start()


async def test_counters_of_a_server_that_began_again_do_not_fall(sandboxes):
    async with pool(sandboxes) as (made, ends, urls):
        for _ in range(4):
            await made.run("print(1)")
        known = await made.health()
        await ends[0]()
        async with (
            make_sandbox("bwrap", workers=1) as new,
            serving(new, port=int(urls[0].rpartition(":")[2])),
        ):
            await made.run("print(1)")
            assert (await made.health()).since(known).runs == 1

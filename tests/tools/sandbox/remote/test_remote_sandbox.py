"""A served sandbox: a real server on a loopback port, and failures of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp
import pytest
import pytest_asyncio
from served_sandboxes import TOKEN, serving

from tools.builtin.python import PythonTool
from tools.owner import acting_for
from tools.sandbox import (
    AssertTest,
    CallTest,
    CopyRefused,
    Limits,
    OutcomeKind,
    SandboxBusy,
    SandboxFailure,
    SandboxUnavailable,
    SessionOver,
    Status,
    StdioTest,
    make_sandbox,
)
from tools.sandbox.host import session_permits
from tools.sandbox.remote import transport, wire
from tools.sandbox.remote.client import RemoteSandbox
from tools.sandbox.session import Session
from tools.tool import ToolContext

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    """The served sandbox."""
    async with make_sandbox("bwrap", workers=2, max_sessions=6) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(sandbox):
    async with serving(sandbox) as (url, _):
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def remote(url):
    async with make_sandbox(url, token=TOKEN) as made:
        yield made


@pytest.fixture(autouse=True)
def short_retry(monkeypatch):
    monkeypatch.setattr(transport, "_RETRY_S", 0.1)


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_run_gives_the_same_result_locally_and_remotely(remote, sandbox):
    source = "import sys; print(input()); print(open('a/b', 'rb').read()); sys.exit(3)"
    options = {"stdin": "h\u00e4\udcff", "files": {"a/b": b"\0\xff", "c": "text"}}
    there = await remote.run(source, **options, limits=Limits(wall_s=9))
    here = await sandbox.run(source, **options, limits=Limits(wall_s=9))
    assert (there.status, there.exit_code, there.stdout) == ("error", 3, here.stdout)
    assert type(there.status) is Status
    assert (there.backend, there.isolation) == ("bwrap", "namespaces")
    assert there.limits_enforced_by == here.limits_enforced_by
    assert (remote.backend, remote.isolation) == ("bwrap", "namespaces")
    assert remote.limits == sandbox.limits


async def test_files_are_returned_by_the_server(remote):
    result = await remote.run(
        "import os\nopen('out', 'wb').write(bytes(range(256)) * 8192)\nos.symlink('out', 'link')",
        collect=["out", "link"],
    )
    assert result.files == {"out": bytes(range(256)) * 8192}
    assert result.files_left_out == {"link": "a link"}
    with pytest.raises(ValueError, match="collect"):
        await remote.run("", collect=["/etc/passwd"])


async def test_each_test_has_its_own_process_on_the_server(remote):
    source = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls)"
    tests = [CallTest((n,), 1) for n in range(3)]
    assert (await remote.grade(source, tests, "f")).num_passed == 1
    assert (await remote.grade(source, tests, "f", fresh_process=True)).passed


async def test_limits_of_the_client_apply(url, remote):
    async with make_sandbox(url, Limits(wall_s=0.3), token=TOKEN) as quick:
        assert (await quick.run("while True: pass")).status is Status.TIMEOUT
        assert (await quick.run("print(1)", limits=Limits(wall_s=9))).stdout == "1\n"
    with pytest.raises(ValueError, match=r"limits.memory_mb \(512\).*\(256\)"):
        await remote.run("print(1)", limits=Limits(memory_mb=512))
    with pytest.raises(ValueError, match=r"limits.memory_mb \(512\).*\(256\)"):
        async with make_sandbox(url, Limits(memory_mb=512), token=TOKEN):
            pass
    for limits in (Limits(output_kb=(32 << 10) + 1), Limits(returned_kb=(64 << 10) + 1)):
        advice = r"limits.(output|returned)_kb \(\d+\) is too high for a server.* at most 64 MiB"
        with pytest.raises(ValueError, match=advice):
            await remote.run("print(1)", limits=limits)
        with pytest.raises(ValueError, match=advice):
            await remote.grade("", [StdioTest("", "")], limits=limits)
        with pytest.raises(ValueError, match=advice):
            await remote.session(limits=limits).start()
    longest = Limits(output_kb=32 << 10, returned_kb=64 << 10)
    assert (await remote.run("print(1)", limits=longest)).stdout == "1\n"
    with pytest.raises(ValueError, match="relative path"):
        await remote.run("print(1)", files={"/etc/passwd": "x"})
    with pytest.raises(ValueError, match="text or bytes"):
        await remote.run("print(1)", files={"a": 1})


async def test_verdicts_and_values_arrive_exactly(remote, sandbox):
    deep = [1]
    for _ in range(37):
        deep = [deep]
    values = [None, 1 << 4000, 0.1, -0.0, 1j, "\ud800\udc00", b"\xff", (1, [2]), {3: {4}}, deep]
    tests = [CallTest((value,), value) for value in values]
    tests += [
        CallTest((1,), 1.05, tolerance=0.1),
        CallTest((), 5, {"x": 5}),
        CallTest((1,), 2),
        StdioTest("x", ""),
        AssertTest("assert same(y) == 2", setup="y = 2"),
    ]
    source = "def same(x): return x"
    there = await remote.grade(source, tests, "same")
    here = await sandbox.grade(source, tests, "same")
    assert [o.kind for o in there.outcomes] == [o.kind for o in here.outcomes]
    assert there.outcomes[: len(values)] == here.outcomes[: len(values)]
    assert there.num_passed == len(tests) - 1 and not there.passed
    assert there.outcomes[12].kind is OutcomeKind.WRONG and there.outcomes[12].value == 1
    assert (there.backend, there.isolation) == ("bwrap", "namespaces")
    first = await remote.grade(
        "def f(): return 0", [CallTest((), 1)] * 3, "f", stop_at_first_failure=True
    )
    assert [o.kind for o in first.outcomes].count("not_run") == 2
    with pytest.raises(ValueError, match="must be a CallTest"):
        await remote.grade("", [1])
    with pytest.raises(ValueError, match="entry_point="):
        await remote.grade("", [CallTest((), 1)])


async def test_values_beyond_the_limit_are_dropped_but_not_their_outcomes(remote, monkeypatch):
    monkeypatch.setattr(wire, "_VALUES_KEPT", 3000)
    tests = [CallTest((), "x" * 1000)] * 5
    verdict = await remote.grade("def f(): return 'x' * 1000", tests, "f")
    assert verdict.passed
    assert [o.value is None for o in verdict.outcomes].count(True) == 3


async def test_a_request_without_the_token_is_refused(url):
    for token, message in (
        (None, "asks for a token, and none is set: set TURNWISE_SANDBOX_TOKEN"),
        ("another-token-of-length", "refuses the token: set TURNWISE_SANDBOX_TOKEN"),
        (TOKEN + "x", "refuses the token"),
    ):
        with pytest.raises(SandboxUnavailable, match=message):
            async with make_sandbox(url, token=token):
                pass
    async with aiohttp.ClientSession() as http:
        for path in ("/sandbox", "/health", "/run", "/grade", "/sessions", "/none"):
            for method in ("GET", "POST"):
                async with http.request(method, url + path) as response:
                    assert response.status == 401
                    assert (await response.text()).startswith("a token is needed")
        async with http.get(f"{url}/sandbox", headers={"Authorization": "Bearer x"}) as response:
            assert (response.status, await response.text()) == (401, "the token is wrong")
        headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://site.example"}
        async with http.post(f"{url}/run", headers=headers) as response:
            assert response.status == 403


async def test_the_token_may_come_from_the_environment(url, monkeypatch):
    monkeypatch.setenv("TURNWISE_SANDBOX_TOKEN", TOKEN)
    async with make_sandbox(url) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"


async def test_a_server_that_is_no_sandbox_or_too_weak_is_refused_at_the_start(
    url, sandbox, monkeypatch
):
    with pytest.raises(SandboxUnavailable, match="no sandbox answers"):
        async with make_sandbox("http://127.0.0.1:9"):
            pass
    monkeypatch.setattr(type(sandbox), "isolation", "restricted")
    with pytest.raises(SandboxUnavailable, match=r"isolation restricted.*below min_isolation"):
        async with make_sandbox(url, token=TOKEN, min_isolation="namespaces"):
            pass
    async with make_sandbox(url, token=TOKEN, min_isolation="restricted") as weak:
        assert weak.isolation == "restricted"
    monkeypatch.setattr(wire, "VERSION", 7)
    server_side = wire.pack
    monkeypatch.setattr(wire, "pack", lambda m: server_side({**m, "version": 1}))
    with pytest.raises(SandboxUnavailable, match="version 1 of the protocol, this is version 7"):
        async with make_sandbox(url, token=TOKEN):
            pass


@pytest.mark.parametrize(
    "bad",
    ["http://", "http://h:1/path", "http://u:p@h:1", "http://h:1/?token=x", "http://h:1/#x"],
)
async def test_urls_are_checked(bad):
    with pytest.raises(ValueError, match=r"must be http\(s\)://HOST:PORT"):
        make_sandbox(bad)


async def test_options_that_the_server_decides_are_refused(url):
    with pytest.raises(ValueError, match=r"workers \(3\) is for the server"):
        make_sandbox(url, workers=3)
    with pytest.raises(ValueError, match="min_isolation"):
        make_sandbox(url, min_isolation="some")
    with pytest.raises(ValueError, match="token= is for a server's URL"):
        make_sandbox("bwrap", token="x")


async def test_malformed_requests_get_an_error(url, sandbox):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = wire.fields_of(Limits())
    run = {"source": "print(1)", "stdin": "", "files": {}, "limits": limits, "collect": []}
    grade = {
        "source": "",
        "entry_point": None,
        "limits": limits,
        "stop_at_first_failure": False,
        "fresh_process": False,
    }
    bodies = {
        "/run": [
            b"",
            b"\xff",
            b"[]",
            b"{}",
            b'["d",[]]',
            b'["q",[]]',
            b"[" * 100_000,
            wire.pack({**run, "source": 1}),
            wire.pack({**run, "collect": [1]}),
            wire.pack({**run, "limits": {"wall_s": "x"}}),
            wire.pack({**run, "limits": {**limits, "wall_s": 1e9}}),
            wire.pack({**run, "limits": {"unknown": 1}}),
        ],
        "/grade": [
            wire.pack({**grade, "tests": [1]}),
            wire.pack({**grade, "tests": [{"test": "call", "args": [1]}]}),
            wire.pack(
                {
                    **grade,
                    "tests": [
                        {"test": "stdio", "stdin": "", "stdout": "", "rules": "exact", "x": 1}
                    ],
                }
            ),
            wire.pack({**grade, "tests": [{"test": "eval", "code": ""}]}),
        ],
    }
    async with aiohttp.ClientSession(headers=headers) as http:
        for path, tries in bodies.items():
            for body in tries:
                async with http.post(url + path, data=body) as response:
                    answer = wire.unpack(await response.read())
                    assert (response.status, answer["error"]) == (400, "value"), body[:200]

        async def chunks():
            yield b"x"

        async with http.post(f"{url}/run", data=chunks()) as response:
            assert response.status == 411
        too_long = {"Content-Length": str(wire.MAX_BODY + 1)}
        with contextlib.suppress(aiohttp.ClientError):
            async with http.post(f"{url}/run", data=b"", headers=too_long) as response:
                assert response.status == 400
    assert (sandbox.executor.permits.waiting, sandbox.executor.permits.in_flight) == (0, 0)


async def test_a_client_that_cancels_or_disconnects_has_its_runs_killed(url, sandbox):
    sleep = "import time; time.sleep(30)"
    limits = Limits(wall_s=30)
    async with make_sandbox(url, token=TOKEN) as remote:
        run = asyncio.create_task(remote.run(sleep, limits=limits))
        grade = asyncio.create_task(
            remote.grade(f"def f(): {sleep}", [CallTest((), 1)], "f", limits=limits)
        )
        await until(lambda: sandbox.executor.permits.in_flight == 2)
        run.cancel()
        await until(lambda: sandbox.executor.permits.in_flight == 1)
    with pytest.raises(SandboxFailure):
        await grade
    await until(lambda: sandbox.executor.permits.in_flight == 0)
    assert sandbox.executor.permits.waiting == 0


async def test_a_full_server_is_retried_until_the_deadline(sandbox):
    async with serving(sandbox, max_waiting=1) as (url, server):
        server._admission._max_requests = 3
        async with RemoteSandbox(url, token=TOKEN, patience_s=60) as remote:
            numbers = range(30)
            results = await asyncio.gather(*(remote.run(f"print({n})") for n in numbers))
            assert [r.stdout for r in results] == [f"{n}\n" for n in numbers]
        async with RemoteSandbox(url, token=TOKEN, patience_s=0.1) as hasty:
            sleep = asyncio.create_task(hasty.run("import time; time.sleep(4)"))
            await until(lambda: sandbox.executor.permits.in_flight == 1)
            server._admission._max_requests = 1
            with pytest.raises(SandboxBusy, match="had no room") as caught:
                await hasty.run("print(1)", limits=Limits(wall_s=0.3))
            assert caught.value.retryable
            server._admission._max_requests = 3
            await sleep
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        ):
            server._admission._max_requests = 0
            async with http.post(f"{url}/run", data=b"") as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "1")


async def test_requests_held_in_memory_are_bounded(sandbox, monkeypatch):
    from tools.sandbox.remote import admission

    monkeypatch.setattr(admission, "MAX_HELD", 3000)
    async with serving(sandbox) as (url, _), RemoteSandbox(url, token=TOKEN) as remote:
        source = f"print(1)\n#{'x' * 1000}"
        results = await asyncio.gather(*(remote.run(source) for _ in range(8)))
        assert {result.stdout for result in results} == {"1\n"}
        assert (await remote.health()).waiting == 0


async def test_episodes_and_clients_are_served_in_turn(url, sandbox):
    async with (
        make_sandbox(url, token=TOKEN) as greedy,
        make_sandbox(url, token=TOKEN) as modest,
    ):
        with acting_for("a"):
            tasks = [
                asyncio.create_task(greedy.run("import time; time.sleep(0.05)")) for _ in range(60)
            ]
        await until(lambda: sandbox.executor.permits.waiting == 6)  # 8 permits: 4 for each worker
        done_by_then = sandbox.executor.tally.runs
        with acting_for("b"):
            await greedy.run("print(1)")
        assert sandbox.executor.tally.runs - done_by_then <= 14
        done_by_then = sandbox.executor.tally.runs
        with acting_for("a"):  # an episode of another client with the same name
            await modest.run("print(1)")
        assert sandbox.executor.tally.runs - done_by_then <= 6
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lost_connection_is_retried_once_and_is_not_a_result(sandbox):
    async with serving(sandbox) as (url, _):
        remote = RemoteSandbox(url, token=TOKEN)
        await remote.start()
        port = int(url.rpartition(":")[2])
    with pytest.raises(SandboxFailure) as caught:
        await remote.run("print(1)")
    assert caught.value.retryable
    run = asyncio.create_task(remote.run("print(2)"))
    await asyncio.sleep(0.03)
    async with serving(sandbox, port=port):
        assert (await run).stdout == "2\n"
        health = await remote.health()
        assert (health.failures, health.retries) == (1, 2)
    with pytest.raises(SandboxFailure, match="health"):
        await remote.health()
    await remote.close()


async def test_a_failure_of_the_servers_sandbox_arrives_as_one(sandbox, monkeypatch):
    async def failing(*_, **__):
        raise SandboxFailure("bwrap: it broke", retryable=False)

    async with serving(sandbox) as (url, server), RemoteSandbox(url, token=TOKEN) as remote:
        monkeypatch.setattr(sandbox, "run", failing)
        with pytest.raises(SandboxFailure, match="bwrap: it broke") as caught:
            await remote.run("print(1)")
        assert not caught.value.retryable
        assert server.broken.is_set()


async def test_the_servers_health(remote, sandbox):
    before = await remote.health()
    await remote.run("while True: pass", limits=Limits(wall_s=0.2))
    async with remote.session() as session:
        await session.run("1")
        health = (await remote.health()).since(before)
    assert (health.runs, health.timeouts, health.calls) == (1, 1, 1)
    assert health.sessions == 1
    await remote.ready()


async def test_sessions(remote, sandbox):
    async with remote.session(files={"f": b"data"}, limits=Limits(wall_s=2)) as session:
        assert not session.over
        result = await session.run("x = [20]\nprint(open('f').read())\nx[0] + 1")
        assert (result.stdout, result.value, result.status) == ("data\n", "21", Status.OK)
        assert (result.backend, result.isolation) == ("bwrap", "namespaces")
        assert "ZeroDivisionError" in (await session.run("1 / 0")).error
        async with await session.fork() as twin:
            await twin.run("x[0] = 0")
            assert (await twin.run("x")).value == "[0]"
        async with await session.snapshot() as snapshot:
            await session.run("x[0] = 99")
            await session.restore(snapshot)
            assert (await session.run("x")).value == "[20]"
            async with remote.session() as other:
                await other.restore(snapshot)
                assert (await other.run("x")).value == "[20]"
        with pytest.raises(SessionOver):
            await session.restore(snapshot)
        assert (await session.run("while True: pass", wall_s=0.3)).detail == "interrupted"
        last = await session.run("import os; os._exit(4)")
        assert (last.over, last.exit_code, session.over) == (True, 4, True)
        with pytest.raises(SessionOver, match="exited with code 4"):
            await session.run("x")
        await session.restart()
        assert "NameError" in (await session.run("x")).error
        with pytest.raises(ValueError, match="wall_s"):
            await session.run("1", wall_s=-1)
    with pytest.raises(SessionOver, match="it was closed"):
        await session.run("1")
    with pytest.raises(ValueError, match="idle_s"):
        remote.session(idle_s=0)
    assert sandbox.executor.session_permits.in_flight == 0


async def test_a_cancelled_call_is_interrupted_and_the_session_continues(remote, sandbox):
    async with remote.session() as session:
        await session.run("x = 1")
        call = asyncio.create_task(session.run("while True: pass"))
        await until(lambda: sandbox.executor.permits.in_flight == 1)
        await asyncio.sleep(0.3)  # until the code runs and can be interrupted
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.run("x")).value == "1"
        fork = asyncio.create_task(session.fork())
        await asyncio.sleep(0)
        fork.cancel()
        await asyncio.gather(fork, return_exceptions=True)
        assert (await session.run("x")).value == "1"
        await until(lambda: sandbox.executor.session_permits.in_flight == 1)


async def test_no_more_sessions_are_open_than_there_are_permits(remote, sandbox):
    async with contextlib.AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(remote.session()) for _ in range(6)]
        values = await asyncio.gather(*(s.run(f"{n}") for n, s in enumerate(sessions)))
        assert [v.value for v in values] == [str(n) for n in range(6)]
        late = asyncio.create_task(remote.session().start())
        await asyncio.sleep(0.2)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
    await until(lambda: sandbox.executor.session_permits.in_flight == 0)


async def test_a_client_beyond_its_sessions_gets_an_error_that_says_what_to_do(
    sandbox, monkeypatch
):
    monkeypatch.setattr(session_permits, "_PERMIT_S", 0.2)
    async with (
        serving(sandbox, max_client_sessions=2) as (url, _),
        RemoteSandbox(url, token=TOKEN, patience_s=3.0) as remote,
        remote.session() as session,
    ):
        snapshot = await session.snapshot()
        advice = (
            "this client has 2 open, the maximum of one client: close some, or start the server "
            "with a higher --max-client-sessions"
        )
        for refused in (remote.session().start, session.fork, session.snapshot):
            with pytest.raises(SandboxBusy, match=advice) as caught:
                await refused()
            assert caught.value.retryable
        await snapshot.close()
        async with await session.fork() as twin:
            assert (await twin.run("1")).value == "1"
        await session.restart()
        async with remote.session() as fresh:
            assert (await fresh.run("2")).value == "2"
    assert sandbox.executor.session_permits.in_flight == 0


async def test_a_client_beyond_its_connections_gets_an_error_that_says_what_to_do(sandbox):
    async with (
        serving(sandbox, max_client_sessions=1) as (url, server),
        make_sandbox(url, token=TOKEN) as one,
        make_sandbox(url, token=TOKEN) as other,
    ):
        async with one.session() as session:
            with pytest.raises(SandboxBusy, match=r"share one sandbox.*--max-client-sessions"):
                await other.session().start()
            assert (await session.run("1")).value == "1"
        await one.close()
        await until(lambda: not server._shares)
        async with other.session() as session:
            assert (await session.run("2")).value == "2"


async def test_sessions_of_a_client_that_left_count_until_they_are_closed(sandbox, monkeypatch):
    ending, close = asyncio.Event(), Session.close

    async def slow(self) -> None:
        await ending.wait()
        await close(self)

    async with serving(sandbox, max_client_sessions=2) as (url, _):
        async with make_sandbox(url, token=TOKEN) as leaves:
            await leaves.session().start()
            await leaves.session().start()
            monkeypatch.setattr(Session, "close", slow)
        async with make_sandbox(url, token=TOKEN) as comes:
            late = asyncio.create_task(comes.session().start())
            await asyncio.sleep(0.3)
            assert not late.done() and sandbox.executor.session_permits.in_flight == 2
            ending.set()
            await late


async def test_a_refused_copy_is_reported(url, sandbox):
    async with (
        make_sandbox(url, Limits(processes=1), token=TOKEN) as remote,
        remote.session() as session,
    ):
        with pytest.raises(CopyRefused):
            await session.fork()
        assert (await session.run("1")).value == "1"


async def test_a_client_that_disconnects_has_its_sessions_closed(url, sandbox):
    remote = RemoteSandbox(url, token=TOKEN)
    await remote.start()
    session = remote.session()
    await session.start()
    await session.fork()
    await session.snapshot()
    call = asyncio.create_task(session.run("while True: pass", wall_s=60))
    await until(lambda: sandbox.executor.permits.in_flight == 1)
    assert sandbox.executor.session_permits.in_flight == 3
    await remote.close()
    with pytest.raises(SandboxFailure, match="the session's state is lost"):
        await call
    await until(lambda: sandbox.executor.session_permits.in_flight == 0)
    assert sandbox.executor.permits.in_flight == 0


async def test_sessions_end_with_the_connection_and_can_be_restarted(sandbox):
    async with serving(sandbox) as (url, _):
        port = int(url.rpartition(":")[2])
        remote = RemoteSandbox(url, token=TOKEN)
        await remote.start()
        session = remote.session()
        await session.start()
        snapshot = await session.snapshot()
        call = asyncio.create_task(session.run("import time; time.sleep(20)", wall_s=30))
        await until(lambda: sandbox.executor.permits.in_flight == 1)
    with pytest.raises(SandboxFailure, match="the session's state is lost"):
        await call
    assert session.over and sandbox.executor.session_permits.in_flight == 0
    with pytest.raises(SessionOver, match="connection"):
        await session.run("1")
    with pytest.raises(SandboxFailure):
        await session.restart()
    async with serving(sandbox, port=port):
        with pytest.raises(SessionOver, match="connection was lost"):
            await session.restore(snapshot)
        await session.restart()
        assert (await session.run("1 + 1")).value == "2"
        await snapshot.close()
        await session.close()
        await remote.close()


async def test_the_python_tool_works_over_it(remote):
    tool = PythonTool(remote)
    for text in ("x = 5", "print(x + 1)"):
        result = await tool({"code": text}, ToolContext(session="one"))
    assert result.text == "6"
    await tool.fork("one", "two")
    assert (await tool({"code": "x"}, ToolContext(session="two"))).text == "5"
    await tool.close()


async def test_malformed_messages_end_the_connection_and_its_sessions(url, sandbox):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    messages = [
        b"nonsense",
        wire.pack({"op": "run"}),
        wire.pack({"op": "run", "number": 1}),
    ]
    async with aiohttp.ClientSession(url, headers=headers) as http:
        for body in messages:
            async with http.ws_connect("/sessions") as line:
                await line.send_bytes(body)
                assert (await line.receive(10)).type is aiohttp.WSMsgType.CLOSE
        async with http.ws_connect("/sessions") as line:
            for number, rest in enumerate(
                [
                    {"op": "start", "session": 1, "settings": {}},
                    {"op": "run", "session": 1, "code": 3, "wall_s": None},
                    {"op": "explode", "session": 1},
                    {"op": "explode"},
                ]
            ):
                await line.send_bytes(wire.pack({"owner": "", "number": number, **rest}))
                answer = wire.unpack(await line.receive_bytes())
                assert answer["error"] in ("value", "over") and answer["number"] == number
    assert sandbox.executor.session_permits.in_flight == 0


async def test_before_and_after(url):
    remote = RemoteSandbox(url, token=TOKEN)
    with pytest.raises(RuntimeError, match="not started"):
        await remote.run("print(1)")
    with pytest.raises(RuntimeError, match="not started"):
        _ = remote.isolation
    async with remote:
        with pytest.raises(RuntimeError, match="started before"):
            await remote.start()
    with pytest.raises(RuntimeError, match="closed"):
        await remote.run("print(1)", limits=Limits())

"""Attacks of a client with the token on the server and its other clients."""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
import time
import zlib

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tools.sandbox import CallTest, Limits, Outcome, OutcomeKind, Verdict, make_sandbox
from tools.sandbox.remote import hosted as hosted_module
from tools.sandbox.remote import server as server_module
from tools.sandbox.remote import wire
from tools.sandbox.remote.server import Server


@pytest_asyncio.fixture
async def sandbox():
    """The served sandbox."""
    async with make_sandbox("bwrap", workers=2, max_sessions=6) as made:
        yield made


@pytest_asyncio.fixture
async def server(sandbox):
    return Server(sandbox, None, 64)


@pytest_asyncio.fixture
async def http(server):
    """An HTTP client for invalid requests."""
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        yield session
    await runner.cleanup()


async def test_a_verdict_of_many_short_texts_reaches_the_client(server):
    """A client accepts 600,000 texts: ten answers once made each grade a failure of the sandbox."""
    source = "def f(x): return [chr(97 + n % 26) + chr(97 + n // 26 % 26) for n in range(98_000)]"
    limits = Limits(wall_s=60.0, cpu_s=60.0)
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with make_sandbox(f"http://{host}:{port}") as client:
        tests = [CallTest((n,), n) for n in range(10)]
        verdict = await client.grade(source, tests, "f", limits=limits)
    await runner.cleanup()
    assert [outcome.kind for outcome in verdict.outcomes] == [OutcomeKind.WRONG] * 10


async def test_a_verdict_keeps_the_values_that_its_client_accepts():
    texts = ["ab"] * 80_000
    outcomes = (Outcome(OutcomeKind.WRONG, texts),) * 12
    verdict = Verdict(False, outcomes, 1.0, "namespaces", "bwrap", "watchdog")
    read = wire.read_verdict(wire.unpack(wire.pack(wire.write_verdict(verdict))))
    assert [outcome.value == texts for outcome in read.outcomes] == [True] * 3 + [False] * 9
    assert {outcome.kind for outcome in read.outcomes} == {OutcomeKind.WRONG}


@pytest.mark.parametrize(
    "tests",
    [
        b'["l",[' + b",".join([b'["s",[]]'] * 400_000) + b"]]",
        b'["l",[' + b",".join([b"null"] * 4_000_000) + b"]]",
    ],
    ids=["sets", "nothing"],
)
async def test_a_message_of_too_many_values_is_refused_while_others_are_served(http, tests):
    body = b'["d",[["source","x"],["tests",' + tests + b"]]]"
    waited = 0.0

    async def look() -> None:
        nonlocal waited
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            waited = max(waited, time.monotonic() - before)

    looking = asyncio.create_task(look())
    async with http.post("/grade", data=io.BytesIO(body)) as response:
        assert response.status == 400
        assert "more than 300000 values" in wire.unpack(await response.read())["message"]
    looking.cancel()
    assert waited < 5  # decoding such a message once took 9 to 17 s
    async with http.post("/run", data=a_run("print(1)")) as response:
        assert wire.unpack(await response.read())["stdout"] == "1\n"


async def test_a_client_whose_requests_do_not_arrive_cannot_fill_the_server(http, server):
    """Each request reserves its declared length. Others once got 429 while one client was slow."""
    host, port = http._base_url.host, http._base_url.port
    lines = [await asyncio.open_connection(host, port) for _ in range(16)]
    for _, writer in lines:
        writer.write(
            f"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: {64 << 20}\r\n\r\n".encode()
        )
    await until(lambda: server._admission._held == 12 * 64 << 20)
    async with http.post("/run", data=a_run("print(1)")) as response:
        assert response.status == 429
        assert "maximum of one client" in wire.unpack(await response.read())["message"]
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with (
        aiohttp.ClientSession(http._base_url, connector=elsewhere) as other,
        other.post("/run", data=a_run("print(1)")) as response,
    ):
        assert wire.unpack(await response.read())["stdout"] == "1\n"
    for _, writer in lines:
        writer.close()
    await until(lambda: server._admission._held == 0 and not server._shares)


async def test_a_connection_without_a_request_is_closed(server, monkeypatch):
    monkeypatch.setattr(server_module, "_HEADERS_S", 0.4)
    runner = web.AppRunner(server.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    watching = asyncio.create_task(server.watch(lambda: runner.server.connections))
    host, port = runner.addresses[0]
    (silent, nothing), (asker, asks), (slow, begins) = [
        await asyncio.open_connection(host, port) for _ in range(3)
    ]
    asks.write(b"GET /sandbox HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await asker.readuntil(b"\r\n")
    begins.write(b"GET /sandbox HTTP/1.1\r\nHost:")
    async with asyncio.timeout(20):
        assert (await silent.read(), await slow.read()) == (b"", b"")
    asks.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")  # this connection is still open
    async with asyncio.timeout(20):
        await asker.readuntil(b"200 OK")
    for writer in (nothing, asks, begins):
        writer.close()
    watching.cancel()
    await runner.cleanup()


def a_run(source: str, **limits: float) -> bytes:
    return wire.pack(
        {
            "source": source,
            "stdin": "",
            "files": {},
            "limits": wire.fields_of(Limits()) | limits,
            "collect": [],
        }
    )


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_compressed_body_is_refused(http, sandbox):
    body = zlib.compress(a_run("print(1)" + " " * (1 << 20)))
    async with http.post("/run", data=body, headers={"Content-Encoding": "deflate"}) as response:
        assert response.status == 415
    assert (await sandbox.health()).runs == 0


async def test_limits_of_a_wrong_type_cost_no_zygote(http, sandbox):
    for limits in ({"memory_mb": 128.0}, {"wall_s": 10**400}, {"processes": True}):
        async with http.post("/run", data=a_run("print(1)", **limits)) as response:
            assert response.status == 400
            assert next(iter(limits)) in wire.unpack(await response.read())["message"]
    health = await sandbox.health()
    assert (health.failures, health.zygotes_died) == (0, 0)


async def test_sessions_started_under_one_number_are_one(http, sandbox):
    settings = {"files": {}, "limits": wire.fields_of(Limits()), "idle_s": 600, "life_s": 600}
    async with http.ws_connect("/sessions") as line:
        for number in range(4):
            start = {"op": "start", "session": 7, "settings": settings}
            await line.send_bytes(wire.pack({**start, "number": number, "owner": "one"}))
        answers = [wire.unpack((await line.receive()).data) for _ in range(4)]
        assert sum("error" not in answer for answer in answers) == 1
        assert sandbox.executor.session_permits.in_flight == 1
    await until(lambda: sandbox.executor.session_permits.in_flight == 0)


async def test_sessions_that_have_ended_keep_no_files_on_the_server(server, monkeypatch):
    """A connection may have 4096 ended sessions, and files were kept for each: 25 MiB of 25."""
    made = []

    def traced(*arguments) -> hosted_module.HostedSessions:
        made.append(hosted_module.HostedSessions(*arguments))
        return made[-1]

    monkeypatch.setattr(server_module, "HostedSessions", traced)
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with make_sandbox(f"http://{host}:{port}") as client:
        session = client.session({"data": "x" * (1 << 20)})
        await session.start()
        await session.run("import os; os._exit(0)")
        (kept,) = made[0]._sessions.values()
        assert kept.over and len(pickle.dumps(kept._request)) < 10_000
        await session.restart()
        assert (await session.run("len(open('data').read())")).value == str(1 << 20)
        await session.close()
        assert not made[0]._sessions
    await runner.cleanup()


async def test_a_long_message_about_a_session_is_decoded_beside_the_loop(http, monkeypatch):
    """64 MiB of text hold the server's loop, and all of its clients, for half a second."""
    unpack, threads = wire.unpack, []

    def traced(body: bytes, *more: int) -> wire.Data:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return unpack(body, *more)

    monkeypatch.setattr(wire, "unpack", traced)
    async with http.ws_connect("/sessions") as client:
        for code in ("1", "#" * 20_000):
            message = {"op": "run", "number": len(code), "owner": "me", "session": 1, "code": code}
            await client.send_bytes(wire.pack({**message, "wall_s": None}))
            answer = unpack((await client.receive()).data)
            assert (answer["number"], answer["error"]) == (len(code), "over")
    assert threads == ["", "sandbox-reader"]


async def test_messages_without_number_end_the_connection(http, sandbox, monkeypatch):
    monkeypatch.setattr(hosted_module, "_MAX_PENDING", 5)
    settings = {"files": {}, "limits": wire.fields_of(Limits()), "idle_s": 600, "life_s": 600}
    async with http.ws_connect("/sessions") as line:
        start = {"op": "start", "session": 7, "settings": settings, "number": 0, "owner": "one"}
        await line.send_bytes(wire.pack(start))
        await line.receive()
        busy = {"op": "run", "session": 7, "code": "while True: pass", "wall_s": 60}
        await line.send_bytes(wire.pack({**busy, "number": 1, "owner": "one"}))
        for number in range(2, 7):  # a full server still accepts closings
            close = {"op": "close", "session": 7, "number": number, "owner": "one"}
            await line.send_bytes(wire.pack(close))
            call = {"op": "run", "session": 7, "code": "1", "wall_s": None, "owner": "one"}
            await line.send_bytes(wire.pack({**call, "number": -number}))
        while (message := await line.receive(20)).type is aiohttp.WSMsgType.BINARY:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.extra == "more than 5 messages wait for their answers"
    await until(
        lambda: (
            sandbox.executor.session_permits.in_flight == sandbox.executor.permits.in_flight == 0
        )
    )


@pytest.mark.parametrize("path", ["/run", "/sessions"])
async def test_unread_answers_are_held_and_then_dropped(http, server, sandbox, monkeypatch, path):
    monkeypatch.setattr(server_module, "_ANSWER_S", 1.0)
    monkeypatch.setattr(server_module, "_SLOWEST", 1 << 30)
    big = Limits(output_kb=32 << 10, wall_s=20)
    program = "import sys\nfor _ in range(16): sys.stdout.write('a' * (1 << 20))"
    if path == "/run":
        response = await http.post(path, data=a_run(program, **wire.fields_of(big)))
        connection = response.connection
    else:
        line = await http.ws_connect(path, max_msg_size=0, compress=0)
        settings = {"files": {}, "limits": wire.fields_of(big), "idle_s": 600, "life_s": 600}
        start = {"op": "start", "session": 7, "settings": settings}
        await line.send_bytes(wire.pack({**start, "number": 0, "owner": "one"}))
        await line.receive()
        call = {"op": "run", "session": 7, "code": program, "wall_s": None}
        connection = line._conn
        connection.transport.pause_reading()
        await line.send_bytes(wire.pack({**call, "number": 1, "owner": "one"}))
    connection.transport.pause_reading()
    await until(lambda: server._admission._held >= 16 << 20)
    await until(lambda: server._admission._held == 0)
    await until(lambda: sandbox.executor.session_permits.in_flight == 0)
    connection.transport.abort()

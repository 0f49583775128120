"""Retrieval over HTTP: our clients, our server, servers that fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tools import ToolFailure
from tools.retrieval import HttpRetriever, Passage, RankBM25, index_passages, open_retriever
from tools.retrieval.serve import serving
from tools.retrieval.wire import WIRES

ANIMALS = [
    Passage("1", "a fox runs", "Fox"),
    Passage("2", "a dog sleeps"),
    Passage("3", "a fox and a dog", "Two"),
]


@pytest.fixture
async def address():
    async with serving(RankBM25(ANIMALS)) as address:
        yield address


async def post(address: str, path: str, body: object) -> tuple[int, object]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session, session.post(address + path, data=data) as reply:
        return reply.status, await reply.json()


@pytest.mark.parametrize("wire", ["search-r1", "re-search", "r1-searcher"])
async def test_each_client_finds_what_the_retriever_finds(address, wire):
    expected = await RankBM25(ANIMALS).search(["fox dog", "unicorn", "dog"], 2)
    async with HttpRetriever(address, wire=wire) as remote:
        found = await remote.search(["fox dog", "unicorn", "dog"], 2)
        assert await remote.search([], 2) == []
    texts = [[(p.text, p.title) for p in passages] for passages in found]
    assert texts == [[(p.text, p.title) for p in passages] for passages in expected]
    if wire != "r1-searcher":
        assert [p.id for p in found[0]] == [p.id for p in expected[0]]
    scores = [p.score for p in found[0]]
    assert scores == ([p.score for p in expected[0]] if wire == "search-r1" else [0.0, 0.0])


async def test_search_r1s_requests_are_answered_in_its_form(address):
    asked = {"queries": ["fox"], "topk": 1, "return_scores": True}
    status, body = await post(address, "/retrieve", asked)
    assert status == 200
    [[item]] = body["result"]
    assert item["document"] == {"id": "1", "contents": '"Fox"\na fox runs'}
    assert item["score"] > 0
    status, body = await post(address, "/retrieve", {"queries": ["fox", "dog"]})
    assert [len(documents) for documents in body["result"]] == [2, 2]
    assert body["result"][1][0] == {"id": "2", "contents": "a dog sleeps"}


async def test_research_and_r1_searcher_are_answered_in_theirs(address):
    fox = {"id": "1", "contents": '"Fox"\na fox runs'}
    asked = {"query": ["fox"], "top_n": 1}
    assert (await post(address, "/batch_search", asked))[1] == [[fox]]
    _, [documents, [[score]]] = await post(
        address, "/batch_search", {**asked, "return_score": True}
    )
    assert documents == [[fox]] and score > 0
    assert (await post(address, "/search", {"query": "fox", "top_n": 1}))[1] == [fox]
    _, [documents, scores] = await post(
        address, "/search", {"query": "fox", "top_n": 1, "return_score": True}
    )
    assert (documents, scores) == ([fox], [score])
    _, body = await post(address, "/queries", {"queries": ["fox"], "k": 1})
    assert body == {"queries": ["fox"], "answers": [['"Fox"\na fox runs']]}
    async with aiohttp.ClientSession() as session, session.get(f"{address}/health") as reply:
        assert await reply.json() == {"status": "ok"}


def test_line_numbers_of_r1_searchers_corpus_are_left_out():
    lines = ["12\tTitle: Lucy Mair Text:  A life.", "1984 was a year."]
    [found] = WIRES["r1-searcher"].read({"queries": ["q"], "answers": [lines]})
    assert [passage.text for passage in found] == [lines[0][3:], lines[1]]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/retrieve", b"{", "not JSON"),
        ("/retrieve", {"query": ["fox"]}, "expected a body such as"),
        ("/retrieve", ["fox"], "expected a body such as"),
        ("/retrieve", {"queries": "fox"}, "must be a list of texts"),
        ("/batch_search", {"query": ["fox"], "top_n": 0}, "from 1 to 1000"),
        ("/queries", {"queries": ["fox"], "k": 10**6}, "from 1 to 1000"),
        ("/search", {"query": ["fox"]}, "expected a body such as"),
    ],
)
async def test_a_wrong_request_is_refused_in_words(address, path, body, says):
    status, reply = await post(address, path, body)
    assert status == 400 and says in reply["detail"]


@asynccontextmanager
async def server(handler):
    app = web.Application()
    app.router.add_post("/retrieve", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_overloaded_server_is_asked_again_after_a_while(status):
    asked: list[float] = []

    async def busy(request):
        asked.append(time.monotonic())
        if len(asked) < 3:
            return web.Response(status=status)
        return web.json_response({"result": [[{"id": "1", "contents": "a fox"}]]})

    async with server(busy) as url, HttpRetriever(url) as remote:
        [[found]] = await remote.search(["fox"], 3)
    assert found.text == "a fox"
    waits = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(waits) == 2 and waits[0] >= 0.1 and waits[1] >= 0.2


async def test_a_server_that_never_answers_is_a_failure_at_the_deadline():
    async def silent(request):
        await asyncio.sleep(60)
        return web.Response()

    async with server(silent) as url, HttpRetriever(url, timeout_s=0.3) as remote:
        started = time.monotonic()
        with pytest.raises(ToolFailure, match=r"within timeout_s \(0.3 s\)") as failure:
            await remote.search(["fox"], 3)
        assert time.monotonic() - started < 30
        assert failure.value.retryable


async def test_a_server_that_does_not_answer():
    async with HttpRetriever("http://127.0.0.1:9", timeout_s=0.4) as remote:
        with pytest.raises(ToolFailure, match="Cannot connect") as failure:
            await remote.search(["fox"], 3)
    assert failure.value.retryable


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (web.json_response, "does not answer in the format 'search-r1'"),
        (lambda: web.json_response([[]]), "does not answer in the format"),
        (lambda: web.json_response({"result": []}), "0 results for 1 queries"),
        (lambda: web.json_response({"result": [[{"id": 1}]]}), "expected a text under"),
        (lambda: web.Response(text="<html>"), "does not answer in the format"),
        (lambda: web.json_response({"detail": "no such index"}, status=422), "no such index"),
    ],
)
async def test_an_answer_of_another_kind_is_not_asked_for_again(reply, says):
    count = 0

    async def wrong(request):
        nonlocal count
        count += 1
        return reply()

    async with server(wrong) as url, HttpRetriever(url) as remote:
        with pytest.raises(ToolFailure, match=says) as failure:
            await remote.search(["fox"], 3)
    assert not failure.value.retryable and count == 1


async def test_a_retriever_that_fails_behind_the_server_is_no_empty_answer():
    class Down:
        async def search(self, queries, k):
            raise ToolFailure("the disk is gone", retryable=True)

    async with serving(Down()) as url:
        assert await post(url, "/retrieve", {"queries": ["fox"]}) == (
            503,
            {"detail": "the disk is gone"},
        )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "localhost:8000"}, "must begin with http"),
        ({"wire": "grpc"}, "must be one of search-r1, re-search, r1-searcher"),
        ({"timeout_s": 0}, "must be > 0"),
        ({"max_connections": 0}, "must be >= 1"),
    ],
)
def test_arguments_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        HttpRetriever(**{"url": "http://x", **options})


async def test_many_searches_at_once_share_connections():
    async with serving(RankBM25(ANIMALS)) as url, HttpRetriever(url, max_connections=8) as remote:
        found = await asyncio.gather(*(remote.search(["dog"], 1) for _ in range(300)))
    assert [passages[0].id for [passages] in found] == ["2"] * 300


async def test_an_index_or_an_address_is_opened(tmp_path, address):
    index_passages(iter(ANIMALS), tmp_path / "index")
    for where in (str(tmp_path / "index"), address, f"{address}/retrieve"):
        async with open_retriever(where) as retriever:
            [[best]] = await retriever.search(["sleeps"], 1)
            assert best.id == "2"
    with pytest.raises(ValueError, match="holds no finished index"):
        async with open_retriever(str(tmp_path / "none")):
            pass


def test_from_a_command_line(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "text": p.text}) + "\n" for p in ANIMALS))
    command = [sys.executable, "-m", "tools.retrieval"]
    built = subprocess.run(
        [*command, "build", str(corpus), str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "3 passages read" in built.stderr and built.stdout.endswith("index: 3 passages\n")
    words = [*command, "serve", str(tmp_path / "index"), "--port", "0", "--topk", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = line.split()[-1]
        shown = subprocess.run(
            [*command, "search", url, "sleeps"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        _, body = asyncio.run(post(url, "/retrieve", {"queries": ["dog"]}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert shown.stdout.split(maxsplit=1)[1] == "2 a dog sleeps\n"
    assert [len(documents) for documents in body["result"]] == [1]
    missing = subprocess.run(
        [*command, "serve", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ") and missing.stderr.count("\n") == 1

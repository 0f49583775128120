"""The client of a chat API, against a local server: requests, retries, deadlines and failures."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import aiohttp
import pytest
from aiohttp import web
from chat_server import chat_server, refusal

from agents.agent import ContextFull
from agents.chat import ChatAgent, ChatClient, ChatLimits
from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure
from envs.episode import ToolResults

HELLO = [{"role": "user", "content": "hello"}]
INFINITE = '{"choices": [{"message": {}}], "usage": {"completion_tokens": Infinity}}'
NEUTRAL = {
    **{"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
SAMPLING = SamplingParams(temperature=0.7, max_tokens=9, seed=4)


@pytest.fixture
def server():
    with chat_server() as made:
        yield made


@pytest.fixture
async def client(server):
    async with aiohttp.ClientSession() as session:
        limits = ChatLimits(timeout_s=60, deadline_s=60)
        yield ChatClient(session, server.url, "m", key="secret", limits=limits)


async def test_a_request_has_the_sampling_and_the_key(server, client):
    answer = await client.complete(HELLO, SAMPLING)
    assert (answer.content, answer.num_tokens) == ("ok", 5)
    assert answer.finish_reason is FinishReason.STOP_TOKEN
    (request,) = server.requests
    assert request == {
        "model": "m",
        "messages": HELLO,
        "temperature": 0.7,
        "max_tokens": 9,
        "seed": 4,
        # A server's own defaults may be a model's top_k and penalties.
        **NEUTRAL,
    }
    assert server.headers[0]["Authorization"] == "Bearer secret"


async def test_further_fields_replace_fields_and_null_removes_them(server):
    async with aiohttp.ClientSession() as session:
        body = {"max_completion_tokens": 9, "max_tokens": None, "reasoning_effort": "low"}
        client = ChatClient(session, server.url + "/chat/completions", "m", body=body)
        sampling = SamplingParams(top_p=0.9, top_k=5, max_tokens=9, stop=("</a>",))
        await client.complete(HELLO, sampling)
    request = server.requests[0]
    assert "max_tokens" not in request
    assert (request["max_completion_tokens"], request["reasoning_effort"]) == (9, "low")
    assert (request["top_p"], request["top_k"], request["stop"]) == (0.9, 5, ["</a>"])
    assert "Authorization" not in server.headers[0]


async def test_neutral_fields_that_a_server_does_not_know_are_left_out(server, client):
    def strict(request):
        for name in ("top_k", "min_p", "repetition_penalty"):
            if name in request:
                return refusal(400, f"Unrecognized request argument supplied: {name}")
        return "ok"

    server.answer = strict
    for _ in range(2):
        assert (await client.complete(HELLO, SAMPLING)).content == "ok"
    assert len(server.requests) == 5
    assert client.retries.total() == 0
    kept = {"top_p", "presence_penalty", "frequency_penalty"}
    assert NEUTRAL.keys() & server.requests[-1].keys() == kept
    # Without this field it would be another distribution.
    with pytest.raises(PolicyFailure, match=r"answered 400: Unrecognized .*: top_k"):
        await client.complete(HELLO, SamplingParams(top_k=5))


@pytest.mark.parametrize(
    "after", ["0.2", lambda: formatdate(time.time() + 1.0, usegmt=True)], ids=["seconds", "date"]
)
async def test_a_rate_limit_is_waited_for(server, client, after):
    value = after if isinstance(after, str) else after()
    refusals = [refusal(429, **{"Retry-After": value}), refusal(503)]
    server.answer = lambda request: refusals.pop(0) if refusals else "ok"
    assert (await client.complete(HELLO, SAMPLING)).content == "ok"
    assert (len(server.requests), client.retries.total(), client.requests) == (3, 2, 1)


async def test_a_rate_limit_after_the_deadline_fails_at_once(server, client):
    server.answer = lambda request: refusal(429, "slow down", **{"Retry-After": "3600"})
    with pytest.raises(
        PolicyFailure, match=r"within 60 s and 1 attempts.*429: slow down"
    ) as raised:
        await client.complete(HELLO, SAMPLING)
    assert not raised.value.retryable
    assert len(server.requests) == 1


async def test_a_server_that_stays_broken_fails_at_the_deadline(server):
    server.answer = lambda request: refusal(500, "broken")
    async with aiohttp.ClientSession() as session:
        limits = ChatLimits(timeout_s=60, deadline_s=2)
        client = ChatClient(session, server.url, "m", limits=limits)
        with pytest.raises(PolicyFailure, match=r"gave no answer within 2 s and \d+ attempts"):
            await client.complete(HELLO, SAMPLING)
    assert server.requests


@pytest.mark.parametrize("after", ["0", formatdate(0, usegmt=True)], ids=["seconds", "date"])
async def test_a_retry_time_that_is_over_does_not_flood_the_server(server, after):
    server.answer = lambda request: refusal(429, "slow down", **{"Retry-After": after})
    async with aiohttp.ClientSession() as session:
        limits = ChatLimits(timeout_s=60, deadline_s=1)
        client = ChatClient(session, server.url, "m", limits=limits)
        with pytest.raises(PolicyFailure, match="slow down"):
            await client.complete(HELLO, SAMPLING)
    # Waits of at least 0.5 s, then of at least 1 s.
    assert len(server.requests) <= 2


@pytest.mark.parametrize("url", ["http://localhost:99999/v1", "http:///v1"])
async def test_a_url_that_cannot_be_requested_fails_at_once(url):
    async with aiohttp.ClientSession() as session:
        client = ChatClient(session, url, "m", limits=ChatLimits(deadline_s=600))
        with pytest.raises(PolicyFailure, match="check the URL"):
            await client.complete(HELLO, SAMPLING)


async def test_nothing_listens():
    async with aiohttp.ClientSession() as session:
        limits = ChatLimits(deadline_s=0.3)
        client = ChatClient(session, "http://127.0.0.1:9/v1", "m", limits=limits)
        with pytest.raises(PolicyFailure, match=r"gave no answer within 0\.3 s"):
            await client.complete(HELLO, SAMPLING)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: refusal(401, "bad key"), "answered 401: bad key"),
        (lambda: {"content": "x", "ended": "content_filter"}, "filtered"),
        (lambda: {"content": "x", "ended": "repetition"}, r"unknown finish_reason \(repetition\)"),
        (lambda: {"content": [{"type": "text"}]}, "not answer in the API's form"),
        (lambda: {"content": "x", "tool_calls": ["add"]}, "not answer in the API's form"),
        (lambda: {"tool_calls": [{"function": "add"}]}, "not answer in the API's form"),
        (lambda: web.Response(text=INFINITE), "not answer in the API's form"),
    ],
)
async def test_refusals_are_not_repeated(server, client, answer, message):
    server.answer = lambda request: answer()
    with pytest.raises(PolicyFailure, match=message):
        await client.complete(HELLO, SAMPLING)
    assert len(server.requests) == 1


@pytest.mark.parametrize("ended", ["abort", "error"])
async def test_an_answer_that_the_server_broke_off_is_asked_for_again(server, client, ended):
    answers = [{"content": "ha", "ended": ended}, {"content": "half and half"}]
    server.answer = lambda request: answers.pop(0)
    assert (await client.complete(HELLO, SAMPLING)).content == "half and half"
    assert client.retries == {ended: 1}


@pytest.mark.parametrize(
    "error",
    [
        "This model's maximum context length is 8 tokens.",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ],
)
async def test_a_full_window_is_no_failure(server, client, error):
    server.answer = lambda request: refusal(400, error)
    with pytest.raises(ContextFull):
        await client.complete(HELLO, SAMPLING)


async def test_waiting_for_a_permit_counts_as_the_queue(server):
    server.answer = lambda request: time.sleep(0.2) or "ok"
    async with aiohttp.ClientSession() as session:
        client = ChatClient(session, server.url, "m", limits=ChatLimits(concurrent=1))
        requests = [client.complete(HELLO, SAMPLING, session=name) for name in ("a", "b")]
        await asyncio.gather(*requests)
        assert client.queued_s("a") < client.queued_s("b")
        assert client.queued_s("b") > 0.1
        client.end("b")
        assert client.queued_s("b") == 0


async def test_reasoning_precedes_the_action_and_is_not_sent_again(server, client):
    server.answer = lambda request: {
        "content": "4",
        "reasoning_content": "2 + 2",
        "ended": "length",
    }
    agent = ChatAgent(client, SAMPLING, session="s", turn_seed=lambda turn: 7 + turn)
    agent.start("2 + 2?", "Be brief.")
    action = await agent.act()
    assert (action, action.finish_reason) == ("<think>\n2 + 2\n</think>\n4", FinishReason.LENGTH)
    assert (agent.unrecorded_tokens, agent.last.token_ids, len(agent.segment)) == (5, (), 0)
    agent.observe("Sure?", continues=False)
    await agent.act()
    assert server.requests[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ]
    assert [request["seed"] for request in server.requests] == [7, 8]


async def test_calls_of_the_api_become_text_and_get_their_results(server, client):
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    broken = {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{a"}}
    server.answer = lambda request: {"content": None, "tool_calls": [call, broken]}
    agent = ChatAgent(client, SAMPLING, session="s")
    schema = {"type": "function", "function": {"name": "add"}}
    agent.start("1 + 1?", tools=[schema])
    action = await agent.act()
    assert action == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {a}\n</tool_call>'
    )
    twin = agent.fork()
    agent.observe(ToolResults.of([("add", "2"), ("add", "error")]), continues=False)
    await agent.act()
    assert server.requests[1]["tools"] == [schema]
    assert [m["role"] for m in server.requests[1]["messages"]] == [
        *("user", "assistant", "tool", "tool")
    ]
    assert server.requests[1]["messages"][2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "error"},
    ]
    twin.observe("malformed", continues=False)
    assert [m["content"] for m in twin.messages[2:]] == ["malformed", ""]


@pytest.mark.parametrize(
    ("message", "stop", "text"),
    [
        ({"content": "<search>cats"}, ("</search>",), "<search>cats</search>"),
        ({"content": "<search>a</search> b"}, ("</search>",), "<search>a</search> b"),
        ({"content": "one\nEND"}, ("END",), "one\nEND"),
        ({"content": "one"}, ("END",), "one"),
        (
            {"content": None, "reasoning": "So: <search>cats"},
            ("</search>",),
            "<think>\nSo: <search>cats</search>",
        ),
        ({"content": "", "reasoning": "So."}, ("END",), "<think>\nSo.\n</think>\n"),
    ],
)
async def test_a_stop_string_that_the_server_removed_is_restored(
    server, client, message, stop, text
):
    server.answer = lambda request: dict(message)
    agent = ChatAgent(client, SAMPLING, session="s")
    agent.start("?", stop=stop)
    action = await agent.act()
    assert action == text
    ended = FinishReason.STOP_STRING if text.endswith(stop) else FinishReason.STOP_TOKEN
    assert action.finish_reason is ended


async def test_a_thought_that_was_cut_stays_open(server, client):
    server.answer = lambda request: {"content": None, "reasoning": "So it", "ended": "length"}
    agent = ChatAgent(client, SAMPLING, session="s")
    agent.start("?")
    action = await agent.act()
    assert (action, action.finish_reason) == ("<think>\nSo it", FinishReason.LENGTH)
    assert agent.messages[-1] == {"role": "assistant", "content": ""}

"""A chat model's probabilities over HTTP, against a server in this process."""

from __future__ import annotations

import math

import pytest
from aiohttp import web

from envs.judges.chooser import JudgeFailure
from envs.judges.endpoint import ChatEndpoint, EndpointChooser
from tools import ToolFailure
from tools.limits import CallLimits

ASKED = [{"role": "user", "content": "1 or 2?"}]


class Server:
    """An OpenAI-compatible API that gives one answer to everything."""

    def __init__(self):
        self.answer = {}
        self.requests = []

    async def complete(self, request):
        self.requests.append(await request.json())
        return web.json_response(self.answer)

    def says(self, *tokens):
        """Tokens, each with the probabilities of what could stand there."""
        content = [
            {
                "token": text,
                "logprob": math.log(others.get(text, 1e-9)),
                "top_logprobs": [
                    {"token": other, "logprob": math.log(p)} for other, p in others.items()
                ],
            }
            for text, others in tokens
        ]
        message = {"role": "assistant", "content": "".join(text for text, _ in tokens)}
        self.answer = {"choices": [{"message": message, "logprobs": {"content": content}}]}


@pytest.fixture
async def server():
    made, app = Server(), web.Application()
    app.router.add_post("/v1/chat/completions", made.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


async def choose(server, options):
    limits = CallLimits(timeout_s=5.0)
    async with ChatEndpoint(server.url, "fair-1", limits=limits) as endpoint:
        return await EndpointChooser(endpoint)(ASKED, options)


async def test_probabilities_are_those_of_the_first_word_among_the_options(server):
    server.says(("1", {"1": 0.5, "2": 0.2, " 2": 0.1, "The": 0.2}), (".", {".": 1.0}))
    # "2" and " 2" are the same word; "The" is none of the options.
    assert await choose(server, ["1", "2"]) == pytest.approx([0.5 / 0.8, 0.3 / 0.8])
    (request,) = server.requests
    assert request["messages"] == ASKED
    assert (request["logprobs"], request["top_logprobs"]) == (True, 20)
    assert (request["temperature"], request["max_tokens"]) == (0.0, 4)


async def test_white_space_and_marks_before_the_word_are_passed_over(server):
    server.says(("\n", {"\n": 1.0}), ("**", {"**": 1.0}), ("2", {"1": 0.1, "2": 0.9}))
    assert await choose(server, ["1", "2"]) == pytest.approx([0.1, 0.9])


async def test_grades_of_one_token_each(server):
    server.says(("10", {"10": 0.6, "1": 0.1, "9": 0.3}))
    found = await choose(server, [str(n) for n in range(1, 11)])
    assert found == pytest.approx([0.1, *[0.0] * 7, 0.3, 0.6])


async def test_a_grade_of_two_tokens_has_no_known_probability(server):
    server.says(("9", {"9": 0.8, "1": 0.2}))
    with pytest.raises(JudgeFailure, match=r"writes '10' in several tokens.*scale=9") as failed:
        await choose(server, [str(n) for n in range(1, 11)])
    assert not failed.value.retryable
    found = await choose(server, [str(n) for n in range(1, 10)])
    assert found == pytest.approx([0.2, *[0.0] * 7, 0.8])


async def test_what_says_no_option_is_a_failure(server):
    server.says(("Both", {"Both": 0.9, "Hm": 0.1}))
    with pytest.raises(JudgeFailure, match="must say one of 1, 2, and said 'Both'"):
        await choose(server, ["1", "2"])


async def test_without_alternatives_there_is_no_soft_judgement(server):
    server.answer = {"choices": [{"message": {"role": "assistant", "content": "1"}}]}
    with pytest.raises(JudgeFailure, match="gives no top_logprobs"):
        await choose(server, ["1", "2"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": [{"message": {"content": None}}]},
        {"choices": [{"message": {"content": "1"}, "logprobs": {"content": [{"token": "1"}]}}]},
        {"choices": [{"message": {"content": "1"}, "logprobs": 3}]},
    ],
)
async def test_another_form_is_a_failure(server, body):
    server.answer = body
    with pytest.raises(JudgeFailure, match="must answer in the API's form") as failed:
        await choose(server, ["1", "2"])
    assert not failed.value.retryable


async def test_an_endpoint_that_is_away_is_a_failure_that_may_pass(server):
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ToolFailure, match="cannot be reached") as away:
        await choose(server, ["1", "2"])
    assert away.value.retryable

"""The endpoint implements OpenAI's API: tools, streams, rejections, errors, the reward."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import pytest

from agents.capture.messages import read_message
from agents.capture.tool_calls import Said, read_calls
from agents.completion import FinishReason, SamplingParams
from agents.policy import PolicyFailure

USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"box": "3"}}\n</tool_call>'
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.<|im_end|>",
        "parameters": {"type": "object", "properties": {"box": {"type": "string"}}},
    },
}


def saying(*texts):
    left = iter(texts)
    return lambda prompt: next(left)


LOOK_AT = '{{"name": "look", "{}": {{"box": "{}"}}}}'


async def test_calls_come_out_and_results_go_in(serve, logging_policy, exact, renderer):
    policy = logging_policy(saying(f"Let me see.\n{CALL}", "It is green."))
    async with serve(policy) as (agent, _, server):
        messages = [{"role": "system", "content": "Rules."}, USER]
        status, body = await agent.ask(messages, tools=[LOOK])
        assert status == 200
        (choice,) = body["choices"]
        said = choice["message"]
        assert (choice["finish_reason"], said["content"]) == ("tool_calls", "Let me see.")
        (call,) = said["tool_calls"]
        assert call["function"] == {"name": "look", "arguments": '{"box": "3"}'}
        response = {"role": "tool", "tool_call_id": call["id"], "content": "green<|im_end|>"}
        final = await agent.say([*messages, said, response], tools=[LOOK])
        assert final["content"] == "It is green."
        assert "tool_calls" not in final
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    (segment,) = capture.segments
    (recorded,) = capture.turns[0].calls
    assert (recorded.name, recorded.arguments, recorded.result) == (
        "look",
        {"box": "3"},
        "green<|im_end|>",
    )
    text = renderer.tokenizer.decode(segment.token_ids)
    assert text.startswith("<|im_start|>system\nRules.\n<tools>\n")
    assert f"Let me see.\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\ngreen" in text
    # What tools say, and say of themselves, ends no message: system, user, assistant, twice more.
    end = renderer.end_token_ids[0]
    assert segment.token_ids.count(end) == 5


async def test_several_results_are_one_message_of_the_template(serve, logging_policy, renderer):
    policy = logging_policy(saying(CALL + CALL.replace("3", "4"), "done"))
    async with serve(policy) as (agent, _, server):
        said = await agent.say([USER], tools=[LOOK])
        assert said["content"] is None
        ids = [call["id"] for call in said["tool_calls"]]
        assert len(set(ids)) == 2
        results = [{"role": "tool", "tool_call_id": i, "content": f"r{i}"} for i in ids]
        await agent.say([USER, said, *results], tools=[LOOK])
        capture = await server.close(agent.base_url)
    text = renderer.tokenizer.decode(capture.segments[0].token_ids)
    assert text.count("<|im_start|>user") == 2
    assert [call.result for call in capture.turns[0].calls] == [f"r{i}" for i in ids]


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        " <tool_call>{}</tool_call> ",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "look", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {}}',
        "</tool_call>",
    ],
)
def test_malformed_calls_stay_content(text):
    said = read_calls(text)
    assert (said.content, said.calls) == (text, ())


def test_well_formed_calls_come_out_of_malformed_ones():
    said = read_calls(f"a <tool_call>{CALL} b <tool_call>x</tool_call>")
    assert said.calls == (("look", {"box": "3"}),)
    assert said.content == "a <tool_call> b <tool_call>x</tool_call>"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (
            f"Hm.\n<tool_call>{LOOK_AT.format('arguments', 'a')}</tool_call>"
            f"<tool_call>{LOOK_AT.format('arguments', 'b')}</tool_call>",
            "Hm.",
        ),
        (
            "<tool_call><function=look><parameter=box>a</parameter></function></tool_call>\n"
            "<tool_call><function=look><parameter=box>b</parameter></function></tool_call>",
            "",
        ),
        (f"{LOOK_AT.format('parameters', 'a')}; {LOOK_AT.format('parameters', 'b')}", ""),
        (
            f"Hm.<|python_tag|>{LOOK_AT.format('parameters', 'a')}; "
            f"{LOOK_AT.format('parameters', 'b')}",
            "Hm.",
        ),
        (
            f"Hm.[TOOL_CALLS] [{LOOK_AT.format('arguments', 'a')}, "
            f"{LOOK_AT.format('arguments', 'b')}]",
            "Hm.",
        ),
        ('[TOOL_CALLS]look[ARGS]{"box": "a"}[TOOL_CALLS]look[ARGS]{"box": "b"}', ""),
    ],
)
def test_parallel_calls_of_every_format_come_out(text, content):
    assert read_calls(text) == Said(content, (("look", {"box": "a"}), ("look", {"box": "b"})))


def test_a_parameter_between_tags_has_the_type_that_the_request_says():
    text = "<tool_call><function=look><parameter=box>3</parameter></function></tool_call>"
    assert read_calls(text, [LOOK]).calls == (("look", {"box": "3"}),)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "look", "parameters": {}}; and more',
        "[TOOL_CALLS] look at this",
    ],
)
def test_json_that_is_no_call_stays_content(text):
    assert read_calls(text) == Said(text, ())


THOUGHT = f"<think>Maybe {CALL.replace('3', '4')}? Or [TOOL_CALLS].</think>"


@pytest.mark.parametrize("text", [f"{THOUGHT} Green.", f"{THOUGHT}{CALL}", f"<think>Maybe {CALL}"])
async def test_no_api_returns_calls_that_a_thought_drafts(serve, logging_policy, text):
    real = [{"box": "3"}] if text.endswith(f"</think>{CALL}") else []
    policy = logging_policy(lambda prompt: text)
    parameters = LOOK["function"]["parameters"]
    async with serve(policy) as (agent, _, _):
        said = await agent.say([USER], tools=[LOOK])
        calls = [json.loads(c["function"]["arguments"]) for c in said.get("tool_calls", ())]
        assert (calls, said["content"]) == (real, text.removesuffix(CALL) if real else text)
        tools = [{"type": "function", "name": "look", "parameters": parameters}]
        _, body = await agent.post("responses", {"input": "hello", "tools": tools})
        items = [item for item in body["output"] if item["type"] == "function_call"]
        assert [json.loads(item["arguments"]) for item in items] == real
        tools = [{"name": "look", "input_schema": parameters}]
        asked = {"messages": [USER], "tools": tools, "max_tokens": 400}
        _, body = await agent.post("messages", asked)
        assert [b["input"] for b in body["content"] if b["type"] == "tool_use"] == real


ARGUMENTS = (
    r'{"a": 1.0, "b": [1e3, -0.0, 2.50, 12345678901234567890], "c": {"y": "\u00e9", "x": true}}'
)


def as_javascript(text):
    """What ``JSON.stringify(JSON.parse(text))`` gives, by the rules of ECMA-262."""
    plain = {"1.0": "1", "1e3": "1000", "1000.0": "1000", "-0.0": "0", "2.50": "2.5"}
    plain |= {"12345678901234567890": "12345678901234567000"}
    number = lambda n: plain.get(n, n)  # noqa: E731
    value = json.loads(
        text, parse_float=lambda n: f"#{number(n)}#", parse_int=lambda n: f"#{number(n)}#"
    )
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return compact.replace('"#', "").replace('#"', "")


@pytest.mark.parametrize("keep_ids", [True, False])
@pytest.mark.parametrize(
    ("rewrite", "segments"),
    [
        (as_javascript, 1),
        (lambda text: json.dumps(json.loads(text), sort_keys=True, indent=2), 1),
        (lambda text: text.replace("1.0", "1"), 1),
        (lambda text: text.replace("2.5", "2.51"), 2),
        (lambda text: text.replace("1.0", "true"), 2),
        (lambda text: text.replace("true", "1"), 2),
        (lambda text: text.replace("1.0", '"1.0"'), 2),
    ],
)
async def test_arguments_are_compared_by_value(
    serve, logging_policy, exact, rewrite, segments, keep_ids
):
    call = f'<tool_call>{{"name": "look", "arguments": {ARGUMENTS}}}</tool_call>'
    policy = logging_policy(saying(call, "green", call, "green"))
    async with serve(policy) as (agent, _, server):
        said = await agent.say([USER], tools=[LOOK])
        (made,) = said["tool_calls"]
        made["function"]["arguments"] = rewrite(made["function"]["arguments"])
        made["id"] = made["id"] if keep_ids else "another"
        result = {"role": "tool", "tool_call_id": made["id"], "content": "ok"}
        await agent.say([USER, said, result], tools=[LOOK])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == segments


async def test_no_call_is_taken_for_one_without_tools(serve, logging_policy):
    policy = logging_policy(lambda prompt: CALL)
    async with serve(policy) as (agent, _, _):
        assert (await agent.say([USER]))["content"] == CALL
        said = await agent.say([USER], tools=[LOOK], tool_choice="none")
        assert said["content"] == CALL


async def test_other_tools_begin_another_conversation(serve, logging_policy, exact):
    policy = logging_policy(saying("a", "b"))
    async with serve(policy) as (agent, _, server):
        said = await agent.say([USER], tools=[LOOK])
        await agent.say([USER, said, USER])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [segment.parent for segment in capture.segments] == [None, None]


async def test_a_stream_says_and_records_the_same(serve, logging_policy, exact):
    policy = logging_policy(saying(f"Look: {CALL}", "green"))
    async with serve(policy) as (agent, _, server):
        usage = {"include_usage": True}
        chunks = await agent.stream([USER], tools=[LOOK], stream_options=usage)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == len(policy.log[0][1].token_ids)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Look:"
        (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        said = {"role": "assistant", "content": "Look:", "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "green"}
        await agent.stream([USER, said, result], tools=[LOOK])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1


async def test_length_and_stop_strings_are_heeded(serve, logging_policy, exact):
    policy = logging_policy(saying("one two three", "one;", "x"))
    async with serve(policy) as (agent, _, server):
        _, body = await agent.ask([USER], max_completion_tokens=3, max_tokens=9)
        (choice,) = body["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "length")
        assert body["usage"]["completion_tokens"] == 3
        policy.ends = False
        said = await agent.say([USER], stop=";")
        policy.ends = True
        # OpenAI's answers end before the stop string; the tokens that were sampled stay.
        assert said["content"] == "one"
        assert policy.log[1][1].finish_reason is FinishReason.STOP_STRING
        await agent.say([USER, said, USER])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [s.max_tokens for s in policy.samplings] == [3, 400, 400]
    assert policy.samplings[1].stop == (";",)


async def test_the_run_overrules_sampling_settings_and_warns_once(serve, logging_policy, caplog):
    policy = logging_policy(lambda prompt: "x")
    sampling = SamplingParams(temperature=0.9, max_tokens=5)
    with caplog.at_level(logging.WARNING):
        async with serve(policy, sampling=sampling) as (agent, _, _):
            for _ in range(3):
                await agent.say([USER], temperature=0.123, top_p=1, seed=4, max_tokens=100)
    assert {(s.temperature, s.top_p, s.max_tokens) for s in policy.samplings} == {(0.9, 1.0, 5)}
    assert sum("asks for temperature=0.123:" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 1000),
        ("n", True),
        ("logit_bias", {"50": 1}),
        ("logprobs", True),
        ("frequency_penalty", 0.5),
        ("tool_choice", "required"),
        ("parallel_tool_calls", "no"),
        ("response_format", {"type": "json_object"}),
        ("functions", []),
        ("colour", "red"),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("stop", [""]),
        ("stop", 3),
        ("stream", "yes"),
        ("tools", [{"type": "retrieval"}]),
        ("messages", []),
    ],
)
async def test_an_unsupported_field_is_rejected_by_name(serve, logging_policy, field, value):
    policy = logging_policy(lambda prompt: "x")
    async with serve(policy) as (agent, _, _):
        status, body = await agent.ask(**{"messages": [USER], field: value})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"].startswith(field)
    assert field in body["error"]["message"]
    assert policy.log == []


async def test_fields_that_ask_for_nothing_special_are_taken(serve, logging_policy):
    neutral = {"n": 1, "logprobs": False, "presence_penalty": 0.0, "tool_choice": "auto"}
    neutral |= {"response_format": {"type": "text"}, "user": "me", "metadata": {}, "store": None}
    async with serve(logging_policy(lambda prompt: "x")) as (agent, _, _):
        assert (await agent.say([USER], model="gpt-4o", **neutral))["content"] == "x"


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("hello", "messages[0]"),
        ({"role": "function", "content": ""}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "", "audio": {"id": 1}}, "messages[0].audio"),
        ({"role": "assistant", "tool_calls": [{"id": 1}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
    ],
)
async def test_messages_that_are_none_are_refused(serve, logging_policy, message, where):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, _, _):
        status, body = await agent.ask([message])
    assert (status, body["error"]["param"]) == (400, where)


def test_calls_are_compared_by_name_and_arguments():
    def call(arguments, name="look"):
        function = {"name": name, "arguments": arguments}
        raw = {"role": "assistant", "tool_calls": [{"id": arguments[:2], "function": function}]}
        return read_message(raw, 0).key

    assert call('{"a": 1, "b": 2}') == call('{"b":2,"a":1}')
    assert call('{"a": 1}') != call('{"a": 2}')
    assert call('{"a": 1}') != call('{"a": 1}', name="see")
    assert call("not json") != call('{"a": 1}')


async def test_a_full_context_is_an_error_that_agents_know(serve, logging_policy, exact):
    policy = logging_policy(lambda prompt: "x")
    async with serve(policy, context_length=60) as (agent, episode, server):
        said = await agent.say([USER])
        long = {"role": "user", "content": "very long indeed " * 9}
        status, body = await agent.ask([USER, said, long])
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert episode.limit == "context_full"
        # An agent that shortens its history goes on, and is not cut short.
        await agent.say([USER, said, USER])
        assert episode.limit is None
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)


async def test_a_first_prompt_that_does_not_fit_is_recorded(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x")
    async with serve(policy, context_length=2) as (agent, _, server):
        assert (await agent.ask([USER]))[0] == 400
        capture = await server.close(agent.base_url)
    assert capture.turns == []
    assert [sum(segment.loss_mask) for segment in capture.segments] == [0]
    assert len(capture.segments[0]) > 2


@pytest.mark.parametrize(
    ("limits", "limit"), [({"max_turns": 2}, "turn_limit"), ({"episode_tokens": 4}, "token_limit")]
)
async def test_an_episode_that_is_used_up_gets_no_more_answers(
    serve, logging_policy, limits, limit
):
    async with serve(logging_policy(lambda prompt: "x"), **limits) as (agent, episode, _):
        await agent.say([USER])
        await agent.say([USER])
        status, body = await agent.ask([USER])
        assert (status, body["error"]["code"]) == (400, f"{limit}_exceeded")
        assert episode.limit == limit


async def test_a_policy_that_fails_fails_the_episode(serve, logging_policy):
    def fail(prompt):
        raise PolicyFailure("out of order", retryable=True)

    policy = logging_policy(fail)
    async with serve(policy) as (agent, episode, _):
        for _ in range(2):
            body = {"messages": [USER]}
            url = f"{agent.base_url}/chat/completions"
            async with agent.http.post(url, json=body) as response:
                assert response.status == 503
                # SDKs would ask twice more.
                assert response.headers["x-should-retry"] == "false"
                error = (await response.json())["error"]
                assert (error["type"], error["code"]) == ("server_error", "policy_failure")
        status, _ = await agent.post("reward", {"reward": 1.0})
        assert status == 503
        assert episode.rewards is None
        assert episode.failure.retryable


async def test_an_answer_has_a_deadline(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=30)
    async with serve(policy, completion_timeout_s=0.05) as (agent, episode, _):
        status, body = await agent.ask([USER])
    assert status == 503
    assert "no completion within 0.05 s" in body["error"]["message"]
    assert episode.failure.retryable


async def test_the_wait_for_room_counts_in_no_deadline(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=0.3)
    began = asyncio.get_running_loop().time()
    policy.queued_s = lambda session: asyncio.get_running_loop().time() - began
    async with serve(policy, completion_timeout_s=0.1) as (agent, _, _):
        assert (await agent.say([USER]))["content"] == "x"


async def test_who_goes_away_leaves_nothing_behind(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=30)
    async with serve(policy) as (agent, _, server):
        body = {"messages": [USER]}
        timeout = aiohttp.ClientTimeout(total=0.1)
        with pytest.raises(asyncio.TimeoutError):
            await agent.http.post(f"{agent.base_url}/chat/completions", json=body, timeout=timeout)
        policy._delay_s = 0.0
        await agent.say([USER])
        capture = await server.close(agent.base_url)
    assert len(capture.turns) == len(policy.log) == 1


async def test_closing_an_episode_cancels_its_requests(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=30)
    async with serve(policy) as (agent, _, server):
        asked = asyncio.create_task(agent.ask([USER]))
        await asyncio.sleep(0.1)
        capture = await server.close(agent.base_url)
        with pytest.raises(aiohttp.ClientError):
            await asked
        assert capture.turns == []
        status, body = await agent.ask([USER])
        assert (status, body["error"]["code"]) == (404, "episode_over")


async def test_a_reward_ends_the_episode(serve, logging_policy):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, episode, _):
        await agent.say([USER])
        body = {"reward": {"right": 1, "format": 0.5}, "scores": {"f1": 0.25}}
        assert await agent.post("reward", body) == (200, {"reward": 1.5})
        assert episode.rewards == {"right": 1.0, "format": 0.5}
        assert episode.scores == {"f1": 0.25}
        assert (await agent.post("reward", {"reward": 1}))[0] == 409
        assert (await agent.ask([USER]))[0] == 409


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"reward": "good"},
        {"reward": True},
        {"reward": {"a": None}},
        {"reward": float("nan")},
        {"reward": 1e300},
        {"reward": 1, "scores": [1]},
        {"reward": 1, "score": 1},
    ],
)
async def test_an_invalid_reward_is_rejected(serve, logging_policy, body):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, episode, _):
        status, answer = await agent.post("reward", body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert episode.rewards is None


async def test_an_episode_is_reachable_only_by_its_url(serve, logging_policy):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, _, server):
        for url in (f"{server.address}/e/guess/v1", f"{server.address}/v1"):
            async with agent.http.post(f"{url}/chat/completions", json={}) as response:
                assert response.status == 404
                assert "error" in await response.json()
        async with agent.http.get(f"{agent.base_url}/models") as response:
            assert [m["object"] for m in (await response.json())["data"]] == ["model"]
        status, body = await agent.post("embeddings", {})
        assert (status, body["error"]["code"]) == (404, "not_found")
        async with agent.http.post(f"{agent.base_url}/chat/completions", data="{") as response:
            assert response.status == 400
            assert "no JSON" in json.dumps(await response.json())

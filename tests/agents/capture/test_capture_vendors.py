"""/v1/messages and /v1/responses record what chat completions record, in each vendor's format."""

from __future__ import annotations

import json

import pytest

from agents.completion import FinishReason

CALL = '<tool_call>\n{"name": "look", "arguments": {"box": "3"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"box": {"type": "string"}}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA},
}
MESSAGES_TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
RESPONSES_TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA}
USER = {"role": "user", "content": "hello"}
ASK = {"model": "m", "max_tokens": 300, "messages": [USER]}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


def saying(*texts):
    left = iter(texts)
    return lambda prompt: next(left)


async def ok(agent, path, body):
    status, answer = await agent.post(path, body)
    assert status == 200, answer
    return answer


async def events(agent, path, body):
    """The events of a stream; each is named like its data."""
    async with agent.http.post(f"{agent.base_url}/{path}", json={**body, "stream": True}) as http:
        assert (http.status, http.content_type) == (200, "text/event-stream")
        blocks = (await http.text()).split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def chat_loop(agent):
    messages = [{"role": "system", "content": "Rules."}, USER]
    said = await agent.say(messages, tools=[CHAT_TOOL])
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "green"}
    return (await agent.say([*messages, said, result], tools=[CHAT_TOOL]))["content"]


async def messages_loop(agent):
    body = {**ASK, "tools": [MESSAGES_TOOL], "system": [{"type": "text", "text": "Rules."}]}
    said = await ok(agent, "messages", body)
    assert said["stop_reason"] == "tool_use"
    call = said["content"][-1]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "green"}
    more = [
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": [result]},
    ]
    return (await ok(agent, "messages", {**body, "messages": [USER, *more]}))["content"][0]["text"]


async def responses_loop(agent):
    body = {"tools": [RESPONSES_TOOL], "instructions": "Rules.", "store": False}
    said = await ok(agent, "responses", {**body, "input": "hello"})
    result = {"type": "function_call_output", "output": "green"}
    result["call_id"] = said["output"][-1]["call_id"]
    final = await ok(agent, "responses", {**body, "input": [USER, *said["output"], result]})
    return final["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("first", [f"Let me see.\n{CALL}", CALL])
async def test_every_api_records_the_same_tokens(serve, logging_policy, exact, first):
    recorded = []
    for loop in (chat_loop, messages_loop, responses_loop):
        policy = logging_policy(saying(first, "It is green."))
        async with serve(policy) as (agent, _, server):
            assert await loop(agent) == "It is green."
            capture = await server.close(agent.base_url)
        exact(capture, policy.log)
        (segment,) = capture.segments
        recorded.append((segment.token_ids, segment.loss_mask, capture.turns[0].calls))
        assert capture.turns[0].calls[0].result == "green"
    assert recorded[0] == recorded[1] == recorded[2]


async def test_a_stream_of_messages_has_anthropics_events(serve, logging_policy):
    policy = logging_policy(saying(f"<think>\nHm.\n</think>\n\nLook:\n{CALL}"))
    async with serve(policy) as (agent, _, _):
        found = await events(agent, "messages", {**ASK, "tools": [MESSAGES_TOOL]})
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = [*block[:2], *block[1:]]
    assert [event["type"] for event in found] == [
        *("message_start", *thinking, *block, *block, "message_delta", "message_stop")
    ]
    starts = [event["content_block"] for event in found if event["type"] == block[0]]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use"]
    assert (starts[0]["thinking"], starts[1]["text"], starts[2]["input"]) == ("", "", {})
    deltas = [event["delta"] for event in found if event["type"] == block[1]]
    assert [delta["type"] for delta in deltas] == [
        *("thinking_delta", "signature_delta", "text_delta", "input_json_delta")
    ]
    assert (deltas[0]["thinking"], deltas[2]["text"]) == ("Hm.", "Look:")
    assert json.loads(deltas[3]["partial_json"]) == {"box": "3"}
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == len(policy.log[0][1].token_ids)
    assert found[0]["message"]["usage"]["input_tokens"] == len(policy.log[0][0])


async def test_a_stream_of_a_response_has_openais_events(serve, logging_policy):
    policy = logging_policy(saying(f"<think>Hm.</think>Look:\n{CALL}"))
    body = {"input": "hello", "tools": [RESPONSES_TOOL], "include": ["reasoning.encrypted_content"]}
    async with serve(policy) as (agent, _, _):
        found = await events(agent, "responses", body)
    item = ["output_item.added", "output_item.done"]
    parts = [*("content_part.added", "{}.delta", "{}.done", "content_part.done")]
    names = ["created", "in_progress"]
    for kind in ("reasoning_text", "output_text"):
        names += [item[0], *(name.format(kind) for name in parts), item[1]]
    call = "function_call_arguments"
    names += [item[0], f"{call}.delta", f"{call}.done", item[1], "completed"]
    assert [event["type"] for event in found] == [f"response.{name}" for name in names]
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    done = [event["item"] for event in found if event["type"].endswith("item.done")]
    assert found[-1]["response"]["output"] == done
    assert done[0]["encrypted_content"]
    assert json.loads(done[2]["arguments"]) == {"box": "3"}
    assert {event["response"]["id"] for event in found if "response" in event} == {"resp_00000"}


async def test_reasoning_that_comes_back_or_not_continues_the_conversation(
    serve, logging_policy, exact
):
    texts = [f"<think>{i}</think>answer {i}" for i in range(3)]
    policy = logging_policy(saying(*texts))
    async with serve(policy) as (agent, _, server):
        said = (await ok(agent, "messages", ASK))["content"]
        assert [block["type"] for block in said] == ["thinking", "text"]
        history = [USER, {"role": "assistant", "content": said}, USER]
        more = (await ok(agent, "messages", {**ASK, "messages": history}))["content"]
        history[1] = {"role": "assistant", "content": said[1:]}
        history += [{"role": "assistant", "content": more}, USER]
        await ok(agent, "messages", {**ASK, "messages": history})
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1
    assert [turn.said for turn in capture.turns] == texts


async def test_tokens_are_counted_and_nothing_is_recorded(serve, logging_policy):
    policy = logging_policy(saying("x", "y"))
    async with serve(policy) as (agent, _, server):
        body = {**ASK, "system": "Rules.", "tools": [MESSAGES_TOOL]}
        counted = await ok(agent, "messages/count_tokens", {**body, "max_tokens": None})
        asked = {"input": "hello", "instructions": "Rules.", "tools": [RESPONSES_TOOL]}
        also = await ok(agent, "responses/input_tokens", asked)
        said = await ok(agent, "messages", body)
        capture = await server.close(agent.base_url)
    assert counted == {"input_tokens": len(policy.log[0][0])}
    assert also["input_tokens"] == said["usage"]["input_tokens"] == counted["input_tokens"]
    assert len(capture.turns) == 1


async def test_stop_sequences_and_limits_are_the_stop_reason(serve, logging_policy):
    policy = logging_policy(saying("one;", "one two three", "one two", "one two"))
    policy.ends = False
    async with serve(policy) as (agent, _, _):
        said = await ok(agent, "messages", {**ASK, "stop_sequences": [";"]})
        assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", ";")
        assert said["content"] == [{"type": "text", "text": "one"}]
        assert policy.log[0][1].finish_reason is FinishReason.STOP_STRING
        said = await ok(agent, "messages", {**ASK, "max_tokens": 3})
        assert (said["stop_reason"], said["stop_sequence"]) == ("max_tokens", None)
        said = await ok(agent, "responses", {"input": "hello", "max_output_tokens": 3})
        assert said["status"] == "incomplete"
        assert said["incomplete_details"] == {"reason": "max_output_tokens"}
        found = await events(agent, "responses", {"input": "hello", "max_output_tokens": 3})
        assert found[-1]["type"] == "response.incomplete"


async def test_an_agent_that_takes_one_call_gets_the_first(serve, logging_policy, exact):
    other = CALL.replace("3", "4")
    policy = logging_policy(saying(*[CALL + other] * 3, "done"))
    async with serve(policy) as (agent, _, server):
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        said = await ok(agent, "messages", {**ASK, "tools": [MESSAGES_TOOL], "tool_choice": choice})
        assert [block["input"] for block in said["content"]] == [{"box": "3"}]
        body = {"input": "a", "tools": [RESPONSES_TOOL], "parallel_tool_calls": False}
        assert len((await ok(agent, "responses", body))["output"]) == 1
        tools = {"tools": [CHAT_TOOL], "parallel_tool_calls": False}
        said = await agent.say([USER], **tools)
        (call,) = said["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "green"}
        await agent.say([USER, said, result], **tools)
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    # The agent's history with one call continues the conversation in which two were sampled.
    assert len(capture.segments) == 3


async def test_several_answers_to_one_request_are_forks(serve, logging_policy, exact):
    policy = logging_policy(saying("zero", "a", "b", "c", "more"))
    async with serve(policy) as (agent, _, server):
        first = await agent.say([USER])
        history = [USER, first, {"role": "user", "content": "and?"}]
        _, body = await agent.ask(history, n=3)
        said = [choice["message"]["content"] for choice in body["choices"]]
        assert sorted(said) == ["a", "b", "c"]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["completion_tokens"] == 6
        await agent.say([*history, body["choices"][1]["message"], USER])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [segment.parent for segment in capture.segments] == [None, 0, 0]


async def test_a_response_continues_a_stored_one(serve, logging_policy, exact):
    policy = logging_policy(saying(CALL, "green", "again"))
    async with serve(policy) as (agent, _, server):
        body = {"tools": [RESPONSES_TOOL], "instructions": "Rules."}
        first = await ok(agent, "responses", {**body, "input": "hello"})
        result = {"type": "function_call_output", "call_id": "c00000000", "output": "green"}
        more = {**body, "input": [result], "previous_response_id": first["id"]}
        second = await ok(agent, "responses", more)
        assert second["previous_response_id"] == first["id"]
        named = {"type": "item_reference", "id": first["output"][0]["id"]}
        again = [USER, named, result, *second["output"], USER]
        await ok(agent, "responses", {**body, "input": again})
        status, error = await agent.post("responses", {"input": "x", "previous_response_id": "no"})
        assert (status, error["error"]["code"]) == (400, "previous_response_not_found")
        status, error = await agent.post(
            "responses", {"input": [{"type": "item_reference", "id": "no"}]}
        )
        assert (status, error["error"]["param"]) == (400, "input[0]")
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1


async def test_a_custom_tool_takes_a_text(serve, logging_policy, exact):
    patch = json.dumps({"name": "patch", "arguments": {"input": "*** a\n+b"}})
    policy = logging_policy(saying(f"<tool_call>\n{patch}\n</tool_call>", "done"))
    tool = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}}
    body = {"tools": [tool, {"type": "web_search"}]}
    async with serve(policy) as (agent, _, server):
        found = await events(agent, "responses", {**body, "input": "hello"})
        (item,) = found[-1]["response"]["output"]
        assert (item["type"], item["input"]) == ("custom_tool_call", "*** a\n+b")
        assert found[3]["type"] == "response.custom_tool_call_input.delta"
        result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
        await ok(agent, "responses", {**body, "input": [USER, item, result]})
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1
    assert "web_search" not in policy.renderer.tokenizer.decode(capture.segments[0].token_ids)


async def test_a_tool_of_a_namespace_is_named_with_it(serve, logging_policy, exact):
    policy = logging_policy(saying(CALL.replace("look", "agents.look"), "done"))
    body = {"tools": [{"type": "namespace", "name": "agents", "tools": [RESPONSES_TOOL]}]}
    async with serve(policy) as (agent, _, server):
        (item,) = (await ok(agent, "responses", {**body, "input": "hello"}))["output"]
        assert (item["name"], item["namespace"]) == ("look", "agents")
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        await ok(agent, "responses", {**body, "input": [USER, item, result]})
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1
    assert '"agents.look"' in policy.renderer.tokenizer.decode(capture.segments[0].token_ids)


async def test_blocks_of_anthropics_user_messages_keep_their_order(serve, logging_policy):
    policy = logging_policy(saying(CALL + CALL.replace("3", "4"), "done"))
    async with serve(policy) as (agent, _, _):
        body = {**ASK, "tools": [MESSAGES_TOOL]}
        calls = (await ok(agent, "messages", body))["content"]
        text = {"type": "text", "text": "green", "cache_control": {"type": "ephemeral"}}
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [text], "is_error": True}
            for call in calls
        ]
        after = [{"type": "text", "text": "Be quick."}, {"type": "text", "text": "Please."}]
        history = [
            USER,
            {"role": "assistant", "content": calls[:1]},
            {"role": "assistant", "content": calls[1:]},
            {"role": "user", "content": results},
            {"role": "user", "content": after},
        ]
        await ok(agent, "messages", {**body, "messages": history})
    read = policy.renderer.tokenizer.decode(list(policy.log[1][0]))
    response = "\n<tool_response>\ngreen\n</tool_response>"
    assert f"{response}{response}<|im_end|>\n<|im_start|>user\nBe quick.\nPlease.<|im_end|>" in read


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "So"}]}, "messages.1"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [3]}]}, "messages.0.content.0"),
        ({"system": [IMAGE]}, "system.0"),
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_what_messages_cannot_do_is_an_anthropic_error(serve, logging_policy, change, named):
    policy = logging_policy(lambda prompt: "x")
    async with serve(policy) as (agent, _, _):
        status, body = await agent.post("messages", {**ASK, **change})
    assert (status, body["type"]) == (400, "error")
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(f"{named}: ")
    assert policy.log == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "critic", "content": ""}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": [{**USER, "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"tools": [{"name": "look"}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": [{}]}]}, "tools[0].tools[0]"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
async def test_what_responses_cannot_do_is_an_openai_error(serve, logging_policy, change, named):
    policy = logging_policy(lambda prompt: "x")
    async with serve(policy) as (agent, _, _):
        status, body = await agent.post("responses", {"input": "hello", **change})
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["param"] == named
    assert policy.log == []


async def test_a_full_context_is_an_error_that_each_agent_knows(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x")
    long = {"role": "user", "content": "very long " * 40}
    async with serve(policy, context_length=60) as (agent, episode, _):
        status, body = await agent.post("messages", {**ASK, "messages": [long]})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert body["error"]["message"].startswith("prompt is too long: ")
        status, body = await agent.post("responses", {"input": [long]})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        found = await events(agent, "responses", {"input": [long]})
        assert [event["type"] for event in found] == ["response.created", "response.failed"]
        assert found[1]["response"]["error"]["code"] == "context_length_exceeded"
        assert episode.limit == "context_full"


async def test_errors_of_the_episode_have_the_vendors_format(serve, logging_policy):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, _, _):
        await agent.post("reward", {"reward": 1.0})
        status, body = await agent.post("messages", ASK)
        assert (status, body["type"]) == (409, "error")
        status, body = await agent.post("responses", {"input": "x"})
        assert (status, body["error"]["code"]) == (409, "episode_over")
        agent.base_url = agent.base_url.replace("/e/", "/e/x")
        status, body = await agent.post("messages", ASK)
        assert (status, body["error"]["type"]) == (404, "not_found_error")


async def test_an_unknown_field_is_ignored_and_logged(serve, logging_policy, caplog):
    async with serve(logging_policy(lambda prompt: "x")) as (agent, _, _):
        await ok(agent, "messages", {**ASK, "colour_of_messages": "red"})
        await ok(agent, "responses", {"input": "hello", "colour_of_responses": "red"})
    for name in ("colour_of_messages", "colour_of_responses"):
        assert sum(f"{name!r} to /v1/" in record.message for record in caplog.records) == 1

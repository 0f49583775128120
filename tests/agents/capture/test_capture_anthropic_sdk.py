"""The ``anthropic`` package works with the endpoint: tools, streams, counts, errors."""

from __future__ import annotations

import asyncio

import pytest

anthropic = pytest.importorskip("anthropic")

USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"box": "3"}}\n</tool_call>'
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
ASK = {"model": "m", "max_tokens": 300, "tools": [LOOK]}


def answered(message):
    """The history after a message, with a result for each of its calls."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "green"}
        for block in message.content
        if block.type == "tool_use"
    ]
    more = results or [{"type": "text", "text": "So?"}]
    return [{"role": "assistant", "content": message.content}, {"role": "user", "content": more}]


async def test_a_loop_with_tools_streams_and_a_reward(serve, logging_policy, exact):
    texts = iter([f"<think>Hm.</think>Look:\n{CALL}", "It is ", CALL, "green"])
    policy = logging_policy(lambda prompt: next(texts))
    async with serve(policy) as (agent, episode, server):
        base_url = agent.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            history = [USER]
            counted = await client.messages.count_tokens(model="m", messages=history, tools=[LOOK])
            first = await client.messages.create(messages=history, **ASK)
            assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
            assert first.content[2].input == {"box": "3"}
            assert first.usage.input_tokens == counted.input_tokens
            history += answered(first)
            async with client.messages.stream(messages=history, **ASK) as stream:
                assert "".join([text async for text in stream.text_stream]) == "It is "
                second = await stream.get_final_message()
            assert (second.stop_reason, second.content[0].text) == ("end_turn", "It is ")
            history += answered(second)
            async with client.messages.stream(messages=history, **ASK) as stream:
                third = await stream.get_final_message()
            assert (third.stop_reason, third.content[0].input) == ("tool_use", {"box": "3"})
            history += answered(third)
            events = await client.messages.create(messages=history, stream=True, **ASK)
            kinds = [event.type async for event in events]
            assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
            await client.post("/v1/reward", body={"reward": 1.0}, cast_to=object)
        assert episode.rewards == {"reward": 1.0}
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1


async def test_the_synchronous_client_works(serve, logging_policy):
    policy = logging_policy(lambda prompt: "hello")
    async with serve(policy) as (agent, _, _):
        base_url = agent.base_url.removesuffix("/v1")

        def ask():
            with anthropic.Anthropic(base_url=base_url, api_key="none") as client:
                said = client.messages.create(messages=[USER], **ASK)
                with client.messages.stream(messages=[USER], **ASK) as stream:
                    return said.content[0].text, stream.get_final_text()

        assert await asyncio.to_thread(ask) == ("hello", "hello")


async def test_errors_are_those_of_the_package(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=30)
    async with serve(policy, context_length=60, completion_timeout_s=0.1) as (agent, _, _):
        base_url = agent.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none") as client:
            create = client.messages.create
            with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
                await create(messages=[USER], tool_choice={"type": "any"}, **ASK)
            long = {"role": "user", "content": "long " * 90}
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await create(messages=[long], **ASK)
            with pytest.raises(anthropic.InternalServerError) as failed:
                await create(messages=[USER], model="m", max_tokens=9)
            assert failed.value.status_code == 503
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.batches.list()
    # Not asked again, as the package would by itself.
    assert len(policy.samplings) == 1

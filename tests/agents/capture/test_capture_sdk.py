"""The ``openai`` package works with the endpoint."""

from __future__ import annotations

import asyncio

import pytest

openai = pytest.importorskip("openai")

USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"box": "3"}}\n</tool_call>'
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


async def test_a_loop_with_tools_streams_and_a_reward(serve, logging_policy, exact):
    texts = iter([CALL, "It is ", "green"])
    policy = logging_policy(lambda prompt: next(texts))
    async with serve(policy) as (agent, episode, server):
        async with openai.AsyncOpenAI(base_url=agent.base_url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            chat = client.chat.completions
            messages = [USER]
            first = await chat.create(model="x", messages=messages, tools=[LOOK])
            message = first.choices[0].message
            assert message.tool_calls[0].function.arguments == '{"box": "3"}'
            messages.append(message)
            call_id = message.tool_calls[0].id
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "green"})
            # As an object of the package, and as what it dumps.
            second = await chat.create(model="x", messages=messages, tools=[LOOK])
            messages += [second.choices[0].message.model_dump(), {"role": "user", "content": "So?"}]
            stream = await chat.create(model="x", messages=messages, tools=[LOOK], stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(parts) == "green"
            await client.post("/reward", body={"reward": 1.0}, cast_to=object)
        assert episode.rewards == {"reward": 1.0}
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1
    assert len(capture.turns) == 3


async def test_a_loop_of_responses_with_tools_and_streams(serve, logging_policy, exact):
    texts = iter([f"<think>Hm.</think>{CALL}", "It is ", CALL, "green"])
    policy = logging_policy(lambda prompt: next(texts))
    async with serve(policy) as (agent, _, server):
        async with openai.AsyncOpenAI(base_url=agent.base_url, api_key="none") as client:
            ask = {"model": "x", "tools": [TOOL], "store": False}
            items = [USER]
            first = await client.responses.create(input=items, **ask)
            assert [item.type for item in first.output] == ["reasoning", "function_call"]
            items += first.output
            items.append(result_of(first.output[1]))
            # As objects of the package, and as what they dump.
            second = await client.responses.create(input=items, **ask)
            assert second.output_text == "It is "
            items += [*(item.model_dump() for item in second.output), USER]
            async with client.responses.stream(input=items, **ask) as stream:
                third = await stream.get_final_response()
            assert third.output[0].arguments == '{"box": "3"}'
            more = [*items, *third.output, result_of(third.output[0])]
            stream = await client.responses.create(input=more, stream=True, **ask)
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            assert events[-1].response.output_text == "green"
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1


def result_of(call):
    return {"type": "function_call_output", "call_id": call.call_id, "output": "green"}


async def test_the_synchronous_client_continues_a_stored_response(serve, logging_policy, exact):
    policy = logging_policy(lambda prompt: "hello")
    async with serve(policy) as (agent, _, server):

        def ask():
            with openai.OpenAI(base_url=agent.base_url, api_key="none") as client:
                create = client.responses.create
                first = create(model="x", input="hello")
                return create(model="x", input="and?", previous_response_id=first.id).output_text

        assert await asyncio.to_thread(ask) == "hello"
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert len(capture.segments) == 1


async def test_errors_are_those_of_the_package(serve, logging_policy):
    policy = logging_policy(lambda prompt: "x", delay_s=30)
    async with (
        serve(policy, context_length=40, completion_timeout_s=0.1) as (agent, _, _),
        openai.AsyncOpenAI(base_url=agent.base_url, api_key="none") as client,
    ):
        chat = client.chat.completions
        with pytest.raises(openai.BadRequestError) as refused:
            await chat.create(model="x", messages=[USER], logprobs=True)
        assert refused.value.param == "logprobs"
        long = [{"role": "user", "content": "long " * 90}]
        with pytest.raises(openai.BadRequestError) as refused:
            await chat.create(model="x", messages=long)
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError) as failed:
            await chat.create(model="x", messages=[USER])
        assert failed.value.status_code == 503
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="x", input="hello")
    # Not asked again, as the package would by itself.
    assert len(policy.samplings) == 1

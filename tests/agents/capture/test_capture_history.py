"""Sampled tokens are recorded once, as sampled, however an agent edits its histories."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

USER = {"role": "user", "content": "hello"}
RULES = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


def count_up():
    """Says answer0, answer1, ..."""
    numbers = iter(range(1000))
    return lambda prompt: f"answer {next(numbers)}"


async def test_turns_of_a_conversation_are_one_segment(serve, logging_policy, exact, renderer):
    policy = logging_policy(count_up())
    async with serve(policy) as (agent, _, server):
        messages = [RULES, USER]
        for text in ("and then?", "and now?"):
            messages += [await agent.say(messages), user(text)]
        messages.append(await agent.say(messages))
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    (segment,) = capture.segments
    assert capture.system == "Be brief."
    assert [turn.read for turn in capture.turns] == ["Be brief.\nhello", "and then?", "and now?"]
    assert [turn.said for turn in capture.turns] == ["answer 0", "answer 1", "answer 2"]
    # As the template writes it, with not a line feed more or less.
    anew = renderer.start(messages[:-1]) + renderer.splice("answer 2")
    written = renderer.tokenizer.decode(segment.token_ids)
    assert written == renderer.tokenizer.decode(anew) + "<|im_end|>"
    assert [sampling.seed for sampling in policy.samplings] == [100, 101, 102]


async def test_messages_that_sdks_write_differently_are_equal(serve, logging_policy):
    policy = logging_policy(count_up())
    async with serve(policy) as (agent, _, server):
        said = await agent.say([USER])
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        echoed = {**said, "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
        await agent.say([{"role": "user", "content": parts}, echoed, user("more")])
        capture = await server.close(agent.base_url)
    assert len(capture.segments) == 1


@pytest.mark.parametrize(
    ("arguments", "parents"),
    [
        ({"box": "3", "all": False}, [None]),
        ({"box": "3", "deep": {"box": "4"}}, [None]),
        ({"box": "4", "all": False}, [None, None]),
        ({"all": False}, [None, None]),
    ],
)
async def test_arguments_that_the_agent_adds_to_a_call_are_not_the_models(
    serve, logging_policy, exact, arguments, parents
):
    call = '<tool_call>\n{"name": "look", "arguments": {"box": "3"}}\n</tool_call>'
    texts = iter([call, "green"])
    policy = logging_policy(lambda prompt: next(texts))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    async with serve(policy) as (agent, _, server):
        said = await agent.say([USER], tools=tools)
        said["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
        found = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "green"}
        await agent.say([USER, said, found], tools=tools)
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [segment.parent for segment in capture.segments] == parents
    assert capture.turns[0].calls[0].arguments == {"box": "3"}


@pytest.mark.parametrize("edited", ["answer 0 ", "something else"])
async def test_an_edited_answer_begins_another_conversation(
    serve, logging_policy, exact, caplog, edited
):
    policy = logging_policy(count_up())
    async with serve(policy) as (agent, _, server):
        await agent.say([USER])
        await agent.say([USER, {"role": "assistant", "content": edited}, user("more")])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    first, second = capture.segments
    assert (second.parent, second.offset) == (None, 0)
    assert sum(first.loss_mask) == sum(second.loss_mask)
    # Said once in a process, so by the first of these tests alone.
    assert len([r for r in caplog.records if "with other words" in r.message]) <= 1


async def test_a_rewritten_history_forks_behind_the_last_answer_that_is_shared(
    serve, logging_policy, exact
):
    policy = logging_policy(count_up())
    async with serve(policy) as (agent, _, server):
        first = await agent.say([USER])
        second = await agent.say([USER, first, user("a")])
        await agent.say([USER, first, user("a"), second, user("b")])
        await agent.say([USER, first, user("c")])
        # Text that was not sampled, between a shared answer and the question.
        invented = {"role": "assistant", "content": "invented"}
        await agent.say([USER, first, user("a"), invented, user("d")])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    whole, *forks = capture.segments
    answered = len(policy.log[0][0]) + len(policy.log[0][1].token_ids)
    assert [(fork.parent, fork.offset) for fork in forks] == [(0, answered)] * 2
    assert [sum(fork.loss_mask[:answered]) for fork in forks] == [0, 0]
    assert [turn.segment for turn in capture.turns] == [0, 0, 0, 1, 2]
    assert "invented" in policy.renderer.tokenizer.decode(forks[1].token_ids)
    assert len(whole) > answered


async def test_the_same_question_again_forks_before_its_answer(serve, logging_policy, exact):
    policy = logging_policy(count_up())
    async with serve(policy) as (agent, _, server):
        first = await agent.say([USER])
        again = await agent.say([USER])
        assert first["content"] != again["content"]
        # Each of the two goes on for itself.
        await agent.say([USER, again, user("a")])
        await agent.say([USER, first, user("a")])
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [(s.parent, s.offset) for s in capture.segments] == [
        (None, 0),
        (0, len(policy.log[0][0])),
    ]
    assert [turn.segment for turn in capture.turns] == [0, 0, 1, 1]
    assert [turn.said for turn in capture.turns] == ["answer 0", "answer 3", "answer 1", "answer 2"]


async def test_conversations_that_overlap_in_time_are_put_in_order(serve, logging_policy, exact):
    policy = logging_policy(count_up(), delay_s=0.01)
    async with serve(policy) as (agent, _, server):

        async def talk(name):
            messages = [user(name)]
            for text in ("x", "y"):
                messages += [await agent.say(messages), user(text)]
            return await agent.say(messages)

        await asyncio.gather(*map(talk, "abcd"))
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [turn.segment for turn in capture.turns] == [n for n in range(4) for _ in range(3)]


async def test_two_requests_at_once_that_go_on_from_one_answer_fork(serve, logging_policy, exact):
    policy = logging_policy(count_up(), delay_s=0.01)
    async with serve(policy) as (agent, _, server):
        first = await agent.say([USER])
        await asyncio.gather(*(agent.say([USER, first, user(t)]) for t in ("a", "b")))
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert [s.parent for s in capture.segments] == [None, 0]


async def test_requests_run_one_at_a_time_if_the_policy_takes_one(serve, logging_policy):
    policy = logging_policy(count_up(), delay_s=0.05)
    async with serve(policy, at_once=1) as (agent, _, _):
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(agent.say([user(text)]) for text in "abcd"))
        assert asyncio.get_running_loop().time() - began >= 0.2


@pytest.mark.parametrize("seed", range(8))
async def test_any_agent_is_recorded_exactly(serve, logging_policy, exact, seed):
    """An agent that goes on, goes back, edits, asks again and asks in parallel, at random."""
    rng = random.Random(seed)
    policy = logging_policy(lambda _: rng.choice(["yes", "no", "<tool_call>x", ""]), delay_s=0.001)
    async with serve(policy) as (agent, _, server):
        histories = [[user("hello")]]

        async def step():
            history = list(rng.choice(histories))
            if history[-1]["role"] == "assistant":
                history.append(user(rng.choice(["a", "b"])))
            act = rng.random()
            if act < 0.2:
                history = history[: rng.randrange(1, len(history) + 1)]
            elif act < 0.3:
                place = rng.randrange(len(history))
                history[place] = {**history[place], "content": "edited"}
            histories.append([*history, await agent.say(history)])

        for _ in range(12):
            await asyncio.gather(*(step() for _ in range(rng.randint(1, 3))))
        capture = await server.close(agent.base_url)
    exact(capture, policy.log)
    assert any(segment.parent is not None for segment in capture.segments)

"""``math-v0`` with ``syntax="chat"``: calls and results as a model's chat template has them."""

from __future__ import annotations

import json

import pytest

import envs
from envs.play import gold_of, play


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_message_holds_several_calls_and_results_are_messages():
    env = envs.make("math", syntax="chat", tools="calculator", max_turns=3)
    assert (env.stop, env.continues) == ((), False)
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["calculator"]
    assert "<calculator>" not in env.system_prompt
    env.reset(options={"task": 0})
    calls = [call("calculator", expression=text) for text in ("1/2 + 1", "1/0")]
    result = env.step("hm " + "\n".join(calls))
    assert result.observation.results == (
        ("calculator", "3/2 = 1.5"),
        ("calculator", "Error: division by zero"),
    )
    made = [record.arguments["expression"] for record in result.info["tool_calls"]]
    assert made == ["1/2 + 1", "1/0"]
    last = env.step(rf"So \boxed{{{env.state.task.answer}}}")
    assert (last.reward, last.terminated) == (1.0, True)
    env.close()


def test_the_last_turn_calls_nothing_but_what_hands_in_an_answer():
    env = envs.make("math", syntax="chat", tools="calculator, submit", max_turns=2)
    look = call("calculator", expression="1 + 1")
    for submits, reward, made in ((False, 0.0, []), (True, 1.0, ["submit"])):
        env.reset(options={"task": 0})
        env.step(look)
        last = env.step(look + call("submit", answer=env.state.task.answer) if submits else look)
        assert (last.reward, [record.name for record in last.info["tool_calls"]]) == (reward, made)
    env.close()


def test_a_format_is_read_in_the_last_message():
    env = envs.make("math", syntax="chat", tools="calculator", max_turns=2, reward="r1-zero")
    played = play(env, gold_of(env), seed=1, task=0)
    assert [len(step.info.get("tool_calls", ())) for step in played.steps] == [1, 0]
    assert played.steps[-1].reward == env.reward_range[1]
    env.close()


@pytest.mark.parametrize("options", [{"reward": "r1-zero"}, {"level": 3}], ids=str)
def test_it_keeps_the_contract(options):
    env = envs.make("math", syntax="chat", tools="calculator", max_turns=2, **options)
    assert envs.check_env(env, num_tasks=2, num_gold_tasks=20).env_id == "math-v0"
    env.close()


def test_it_has_nothing_to_call_without_tools():
    with pytest.raises(ValueError, match=r"syntax \('chat'\) needs tools: name some"):
        envs.make("math", syntax="chat")
    with pytest.raises(ValueError, match=r"syntax \('json'\) must be one of tags, chat"):
        envs.make("math", syntax="json", tools="calculator", max_turns=2)

"""The submit tool: what it answers, and how it ends an episode of search-qa and of math."""

from __future__ import annotations

import pytest

import envs
import tools

CALL = '<tool_call>{{"name": "submit", "arguments": {{"answer": "{}"}}}}</tool_call>'


async def test_what_it_answers():
    submit = tools.make("submit")
    assert (submit.name, submit.final) == ("submit", True)
    assert list(submit.parameters["properties"]) == ["answer"]
    result = await submit({"answer": " 42\n"})
    assert (result.text, result.data, result.error) == ("Submitted.", "42", None)
    assert (await submit({"answer": " "})).error == "the answer is empty"
    assert not tools.make("calculator").final


@pytest.fixture
def start():
    made = []

    def run(name: str, **options):
        env = envs.make(name, tools="submit", max_turns=2, **options)
        made.append(env)
        env.reset(seed=0, options={"task": 0})
        return env

    yield run
    for env in made:
        env.close()


@pytest.mark.parametrize(
    ("syntax", "call"), [("json", CALL), ("fenced", "```submit\n{}\n```\n")], ids=["json", "fenced"]
)
def test_it_ends_a_search(start, syntax, call):
    env = start("search-qa", syntax=syntax)
    gold = env.state.task.answers[0]
    first = env.step(call.format(""))
    assert "the answer is empty" in first.observation
    assert not (first.terminated or first.truncated)
    last = env.step(call.format(gold))
    assert (last.reward, last.terminated) == (1.0, True), "in the last turn, too"
    [made] = last.info["tool_calls"]
    assert (made.name, made.arguments, made.error) == ("submit", {"answer": gold}, None)
    env.reset(seed=0, options={"task": 0})
    wrong = env.step(call.format("a colour that is not there"))
    assert (wrong.reward, wrong.terminated) == (0.0, True)


def test_a_mistake_in_the_last_turn_ends_it_without_an_answer(start):
    for name, call in (("search-qa", CALL.format("")), ("math", "<submit> </submit>")):
        env = start(name, **({"syntax": "json"} if name == "search-qa" else {}))
        env.step(call)
        last = env.step(call)
        assert (last.reward, last.truncated) == (0.0, True)
        assert last.info["stop_reason"] == envs.StopReason.TURN_LIMIT
        assert last.info["tool_calls"][0].error == "the answer is empty"
        assert last.info["scores"]


@pytest.mark.parametrize(("offset", "reward"), [(0, 1.0), (1, 0.0)])
def test_it_ends_a_problem(start, offset, reward):
    env = start("math", topic="arithmetic")
    gold = int(env.state.task.answer)
    last = env.step(f"Let me see. <submit> {gold + offset} </submit> and more")
    assert (last.reward, last.terminated) == (reward, True)
    assert last.info["scores"]["answered"] == 1.0


def test_an_answer_that_takes_the_verifier_is_compared(start):
    env = start("math", topic="arithmetic", level=3)
    last = env.step(f"<submit> {env.state.task.answer} + 0 </submit>")
    assert (last.reward, last.terminated) == (1.0, True)

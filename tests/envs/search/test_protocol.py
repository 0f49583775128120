"""search-qa-v0 in each syntax: observations and rewards, against the papers' own oracles."""

from __future__ import annotations

import pytest

import envs
import tools
from envs import Action, StopReason
from envs.play import play
from envs.search.env import SearchQAEnv, SearchQAOptions
from envs.search.protocol import PROTOCOLS, SEARCH_R1_RETRY, find_pay
from envs.search.world import SearchTask
from tools.builtin.search import NOTHING_FOUND, search_tool
from tools.retrieval import Passage

OBAMA = (Passage("1", "Obama was president.", "Obama"), Passage("2", "He is Barack.", "Barack"))
VARIANTS = [
    ("re-search", "", "code"),
    ("r1-searcher", "stage-2", "code"),
    ("r1-searcher", "stage-1", "code"),
    ("r1-searcher", "zero", "code"),
    ("r1-searcher", "stage-1", "paper"),
    ("search-r1", "plain", "code"),
    ("search-r1", "format", "paper"),
    ("fenced", "", "code"),
    ("json", "", "code"),
]


class OneTask(list[SearchTask]):
    def __init__(self, *golds: str) -> None:
        super().__init__([SearchTask("Who was president?", golds, 1)])


class Fixed:
    """Finds always the same."""

    def __init__(self, *passages: Passage) -> None:
        self._passages = list(passages)

    async def search(self, queries, k):
        return [self._passages[:k] for _ in queries]


def make(*golds: str, found: tuple[Passage, ...] = OBAMA, **options) -> SearchQAEnv:
    chosen = SearchQAOptions(**options)
    services = {"search": search_tool(Fixed(*found))}
    if chosen.tools:
        services |= {chosen.tools: tools.make(chosen.tools)}
    env = SearchQAEnv(chosen, services=services)
    env.tasks = OneTask(*golds)
    return env


def reward(env: SearchQAEnv, *actions: str) -> float:
    env.reset(seed=0)
    for action in actions:
        step = env.step(action)
    assert step.terminated
    return step.reward


SOUGHT = "I look. <|begin_of_query|> president <|end_of_query|>"
SAID = "So.</think><answer>Barack Obama</answer>"
ELEVEN = SAID.replace("Barack Obama", "Barack Obama a1 a2 a3 a4 a5 a6 a7 a8 a9")


@pytest.mark.parametrize(
    ("actions", "zero", "stage1", "stage2"),
    [
        ([SOUGHT, SAID], 1.0, 2.0, 1.0),
        ([SAID], 1.0, 1.5, 1.0),
        ([SOUGHT, SAID.replace("Barack Obama", "Bush")], 0.0, 0.0, 0.0),
        ([SAID.replace("Barack Obama", "Bush")], 0.0, -0.5, 0.0),
        ([SOUGHT, SAID.replace("Barack ", "")], 2 / 3, 0.0, 2 / 3),
        ([SOUGHT, ELEVEN], 4 / 13 - 2, 2.0, 4 / 13),
        ([f"<think>{SOUGHT}", SAID], -1.0, 1.5, 0.0),
        ([SOUGHT, f"<|begin_of_query|>{SAID}"], -1.0, 1.5, 0.0),
        (["So.</think>Barack Obama"], -2.0, -1.0, -1.0),
        ([SOUGHT, f"The assistant: {SAID}"], -1.0, 2.0, 1.0),
        ([SOUGHT, f"总统 {SAID}"], -1.0, 2.0, 0.0),
    ],
)
def test_r1_searchers_oracles(actions, zero, stage1, stage2):
    for variant, expected in {"zero": zero, "stage-1": stage1, "stage-2": stage2}.items():
        env = make("Barack Obama", syntax="r1-searcher", variant=variant)
        assert reward(env, *actions) == pytest.approx(expected), variant


def test_r1_searchers_paper_pays_no_answer_in_stage_1_and_takes_two_in_stage_2():
    first = {"syntax": "r1-searcher", "variant": "stage-1", "reward": "paper"}
    assert reward(make("Barack Obama", **first), SOUGHT, SAID) == 1.0
    assert reward(make("nobody", **first), SOUGHT, SAID) == 1.0
    assert reward(make("Barack Obama", **first), SAID) == 0.5
    second = {"syntax": "r1-searcher", "reward": "paper"}
    assert reward(make("Barack Obama", **second), SOUGHT, SAID) == 1.0
    assert reward(make("Barack Obama", **second), f"<think>{SAID}") == -1.0


THOUGHT = "<think> t </think>"
LOOKED = f"{THOUGHT} <search> q </search>"


@pytest.mark.parametrize(
    ("actions", "plain", "formatted"),
    [
        ([LOOKED, f"{THOUGHT} <answer> Paris </answer>"], 1.0, 1.0),
        ([LOOKED, f"{THOUGHT} <answer>the Paris.</answer>"], 1.0, 1.0),
        ([LOOKED, f"{THOUGHT} <answer>Paris, France</answer>"], 0.0, 0.2),
        ([f"So {LOOKED}", f"{THOUGHT} <answer> Paris </answer>"], 1.0, 0.8),
        ([f"So {LOOKED}", f"{THOUGHT} <answer> Rome </answer>"], 0.0, 0.1),
        ([LOOKED, f"{THOUGHT} <answer> Paris </answer><|im_end|>"], 1.0, 0.8),
    ],
)
def test_search_r1s_oracles(actions, plain, formatted):
    assert reward(make("Paris", syntax="search-r1"), *actions) == plain
    env = make("Paris", syntax="search-r1", variant="format")
    assert reward(env, *actions) == pytest.approx(formatted)


def test_search_r1_explains_the_actions_after_a_mistake():
    env = make("Paris", syntax="search-r1", max_turns=3)
    env.reset(seed=0)
    step = env.step("I do not know")
    assert (step.observation, step.terminated) == (SEARCH_R1_RETRY, False)
    assert env.step(LOOKED).terminated is False
    last = env.step(LOOKED)
    assert last.truncated and last.info["stop_reason"] is StopReason.TURN_LIMIT
    assert (last.reward, last.info["scores"]["num_searches"]) == (0.0, 1.0)


CALLS = {
    "re-search": LOOKED,
    "r1-searcher": SOUGHT,
    "search-r1": LOOKED,
    "fenced": "```search\nq\n```\n",
    "json": '<tool_call>{"name": "search", "arguments": {"query": "q"}}</tool_call>',
    "chat": '<tool_call>{"name": "search", "arguments": {"query": "q"}}</tool_call>',
}


def test_passages_are_shown_as_each_syntax_does():
    shown = {}
    for syntax, call in CALLS.items():
        env = make("Paris", syntax=syntax)
        env.reset(seed=0)
        shown[syntax] = env.step(call).observation
        assert env.stop == PROTOCOLS[syntax].syntax.stop + PROTOCOLS[syntax].ends
    plain = '"Obama"\nObama was president.\n\n"Barack"\nHe is Barack.'
    assert shown == {
        "re-search": f" <result>\n{plain}\n</result>",
        "r1-searcher": (
            "\n\n<|begin_of_documents|>\n(1)Title: Obama Text:  Obama was president.\n"
            "(2)Title: Barack Text:  He is Barack.\n<|end_of_documents|>\n\n"
        ),
        "search-r1": (
            "\n\n<information>Doc 1(Title: Obama) Obama was president.\n"
            "Doc 2(Title: Barack) He is Barack.</information>\n\n"
        ),
        "fenced": f"<interpreter>\n{plain}\n</interpreter>\n\n",
        "json": f"<tool_response>\n{plain}\n</tool_response>",
        "chat": f"<tool_response>\n{plain}\n</tool_response>",
    }


@pytest.mark.parametrize(
    ("syntax", "shown"),
    [
        ("re-search", " <result>\n2\n</result>"),
        ("r1-searcher", "\n\n<|begin_of_documents|>\n(1)2\n<|end_of_documents|>\n\n"),
        ("search-r1", "\n\n<information>2</information>\n\n"),
    ],
)
def test_the_result_of_another_tool_is_shown_as_no_passage(syntax, shown):
    env = make("Paris", syntax=syntax, tools="calculator")
    env.reset(seed=0)
    assert env.step("<calculator>1+1</calculator>").observation == shown


@pytest.mark.parametrize("syntax", CALLS)
def test_a_search_that_finds_nothing_says_so(syntax):
    env = make("Paris", syntax=syntax, found=())
    env.reset(seed=0)
    observation = env.step(CALLS[syntax]).observation
    before = "(1)" if syntax == "r1-searcher" else ""
    # A chat template wraps results itself; players of texts read Hermes's form.
    wrap = PROTOCOLS["json" if syntax == "chat" else syntax].syntax.wrap
    assert observation == wrap(before + NOTHING_FOUND)


def test_passages_without_titles_are_shown_without():
    bare = (Passage("1", "One."), Passage("2", "Two."))
    shown = {}
    for syntax in ("re-search", "r1-searcher"):
        env = make("Paris", syntax=syntax, found=bare)
        env.reset(seed=0)
        shown[syntax] = env.step(CALLS[syntax]).observation
    assert shown == {
        "re-search": " <result>\nOne.\n\nTwo.\n</result>",
        "r1-searcher": ("\n\n<|begin_of_documents|>\n(1)One.\n(2)Two.\n<|end_of_documents|>\n\n"),
    }


@pytest.mark.parametrize(
    ("syntax", "call", "says"),
    [
        ("json", "<tool_call>search obama</tool_call>", "a call must be JSON"),
        ("json", '<tool_call>{"name": "find", "arguments": {}}</tool_call>', "no tool 'find'"),
        ("json", '<tool_call>{"name": "search", "arguments": {}}</tool_call>', "Field required"),
        ("fenced", "```python\n1\n```\n", "no tool 'python'"),
        ("fenced", "```\nobama\n```\n", "a tool's name"),
        ("r1-searcher", "<|end_of_query|>", "the query is empty"),
    ],
)
def test_a_mistake_is_reported_and_recorded_and_the_episode_goes_on(syntax, call, says):
    env = envs.make("search-qa", syntax=syntax)
    env.reset(seed=0)
    step = env.step(call)
    assert says in step.observation and not step.terminated
    assert says in step.info["tool_calls"][0].error
    env.close()


def test_an_answer_that_was_only_read_is_no_answer():
    for syntax in ("fenced", "json"):
        env = make("Paris", syntax=syntax)
        env.reset(seed=0)
        call = "```search\nq\n```\n" if syntax == "fenced" else "</tool_call>"
        env.step(call)
        env.state.text += "<answer> Paris </answer>"
        assert env.step("done").reward == 0.0
        assert reward(env, "<answer> Paris </answer>") == 1.0


def test_a_text_that_ran_into_its_limit_is_in_no_format():
    env = make("Paris", syntax="fenced")
    env.reset(seed=0)
    step = env.step(Action("<answer> Paris </answer> and so on", "length"))
    assert (step.reward, step.info["scores"]["format"]) == (1.0, 0.0)


@pytest.mark.parametrize(("syntax", "variant", "kind"), VARIANTS)
def test_the_gold_policy_is_right_in_each_syntax(syntax, variant, kind):
    env = envs.make("search-qa", syntax=syntax, variant=variant, reward=kind, split="test")
    for task in range(20):
        played = play(env, env.gold_policy(), task=task)
        assert played.reward == env.reward_range[1]
        scores = played.steps[-1].info["scores"]
        assert (scores["f1"], scores["em"], scores["format"]) == (1.0, 1.0, 1.0)
        assert all(action.endswith(env.stop) for action in played.actions[:-1])
    env.close()


@pytest.mark.parametrize(("syntax", "variant", "kind"), VARIANTS[1:])
def test_each_syntax_keeps_the_contract(syntax, variant, kind):
    env = envs.make("search-qa", syntax=syntax, variant=variant, reward=kind)
    assert len(envs.check_env(env).tasks) == 3
    env.close()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"syntax": "xml"}, r"syntax \('xml'\) must be one of re-search, r1-searcher, search-r1"),
        ({"variant": "format"}, r"variant \('format'\) of syntax re-search must be one of ''"),
        ({"syntax": "search-r1", "variant": "v1"}, "must be one of plain, format"),
        ({"syntax": "r1-searcher", "variant": "zero", "reward": "paper"}, "in the code of"),
        ({"reward": "f1"}, r"reward \('f1'\) must be one of code, paper"),
    ],
)
def test_a_choice_that_there_is_not_is_named(option, says):
    with pytest.raises(ValueError, match=says):
        envs.make("search-qa", **option)


def test_every_row_declares_a_range_that_holds_its_floor():
    for name, protocol in PROTOCOLS.items():
        for variant, kinds in protocol.pay.items():
            for kind, pay in kinds.items():
                assert pay.least <= pay.floor < pay.most
                assert find_pay(name, variant, kind) is pay


def test_a_rubric_replaces_the_pay_of_any_syntax():
    env = make("Barack Obama", syntax="r1-searcher", rubric="f1 + 0.5*searcher_format")
    assert (env.reward_range, reward(env, SOUGHT, SAID)) == ((0.0, 1.5), 1.5)
    assert reward(make("Paris", syntax="json", rubric="em"), "<answer> Paris </answer>") == 1.0

"""Reasoning is split off before calls and answers are read: what a thought drafts is not done."""

from __future__ import annotations

import json
import time

import pytest

import envs
from envs.episode import Action
from rl.evaluation.answers import final_answer
from tools.chat_calls import chat_calls
from tools.syntax import JSON_CALL, split_reasoning

ARGUMENTS = {"expression": "2 + 3"}
JSON = json.dumps({"name": "calculator", "arguments": ARGUMENTS})
LLAMA = json.dumps({"name": "calculator", "parameters": ARGUMENTS})
HERMES = f"<tool_call>{JSON}</tool_call>"
CODER = (
    "<tool_call>\n<function=calculator>\n<parameter=expression>\n2 + 3\n</parameter>\n"
    "</function>\n</tool_call>"
)
DRAFTS = {
    "hermes": f"Maybe {HERMES}? No.",
    "two": f"Maybe {HERMES} or {HERMES}? No.",
    "coder": f"Maybe {CODER}? No.",
    "mistral": f"[TOOL_CALLS] [{JSON}]",
    "mistral-named": f"[TOOL_CALLS]calculator[ARGS]{json.dumps(ARGUMENTS)}[/TOOL_CALLS]",
    "llama": LLAMA,
    "llama-tag": f"<|python_tag|>{LLAMA}",
    "malformed": "<tool_call>{not json}</tool_call>",
    "malformed-coder": "<tool_call><function=calculator><parameter=x>",
    "word": "I could write <tool_call> here.",
    "closing-word": "It ends with </tool_call>.",
    "mistral-word": "Or [TOOL_CALLS], or <|python_tag|>.",
    "fence": f"```\n{HERMES}\n```",
    "quoted": "The tag <think> begins it.",
}
FRAMES = {
    "leading": "<think>{}</think>",
    "lines": "\n<think>\n{}\n</think>\n\n",
    "opened by the prompt": "{}</think>\n",
    "after words": "Let me see. <think>{}</think> ",
    "second": "<think>One.</think> So. <think>{}</think> ",
    "mistral": "[THINK]{}[/THINK]",
}


@pytest.fixture(scope="module")
def math():
    env = envs.make("math", syntax="chat", tools="calculator", max_turns=3)
    yield env
    env.close()


def started(env):
    env.reset(options={"task": 0})
    return env.state.task.answer


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_no_form_of_a_drafted_call_is_made(math, draft, frame):
    thought = frame.format(draft)
    done = math.step(rf"{thought}\boxed{{{started(math)}}}")
    assert (done.reward, done.terminated, done.info["tool_calls"]) == (1.0, True, [])
    # A call behind the thought is the only one that is made.
    for call in (HERMES, CODER, f"[TOOL_CALLS][{JSON}]", LLAMA):
        started(math)
        if call is LLAMA and split_reasoning(thought)[1].strip():
            continue  # It must be the whole message.
        result = math.step(thought + call)
        assert [record.text for record in result.info["tool_calls"]] == ["5"]
        assert result.observation.results == (("calculator", "5"),)


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_thought_without_an_end_has_neither_call_nor_answer(math, draft):
    answer = started(math)
    done = math.step(rf"<think>{draft} \boxed{{{answer}}}")
    assert (done.reward, done.terminated, done.info["tool_calls"]) == (0.0, True, [])


@pytest.mark.parametrize("syntax", ["json", "chat"])
def test_a_drafted_order_changes_no_database(syntax):
    env = envs.make("support", syntax=syntax)
    for task in range(5):
        for end, said in (
            (" No.</think> One moment.", ["One moment."]),
            (" and", [""]),
            ("", None),
        ):
            env.reset(options={"task": task})
            number = next(iter(env.state.shop.orders))
            cancel = json.dumps({"name": "cancel_order", "arguments": {"order": number}})
            before = env.state.shop.copy()
            result = env.step(f"<think>Maybe <tool_call>{cancel}</tool_call>{end}")
            assert env.state.shop == before
            assert all(record.error for record in result.info.get("tool_calls", ()))
            assert said is None or env.state.messages == said
    env.close()


def test_json_reports_a_call_that_was_halted_inside_a_thought():
    """Generation halts at ``</tool_call>``, so the thought cannot end."""
    env = envs.make("search-qa", syntax="json")
    env.reset(options={"task": 0})
    search = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
    result = env.step(f"<think>Maybe {search}")
    assert (result.terminated, [r.name for r in result.info["tool_calls"]]) == (False, [""])
    assert "close the thought with </think>" in result.observation
    assert env.step(f"<think>Yes.</think>{search}").info["tool_calls"][0].error is None
    env.close()


def grid(env):
    return " ".join(map(str, env.state.solution))


# The right answer of the task, and one that reads as an answer but is wrong.
ANSWERED = [
    ("math", {}, lambda e: rf"\boxed{{{e.state.task.answer}}}", r"\boxed{-77}"),
    ("math", {"reward": "orz"}, lambda e: rf"<answer>\boxed{{{e.state.task.answer}}}</answer>",
     r"<answer>\boxed{-77}</answer>"),
    ("search-qa", {"syntax": "chat"}, lambda e: f"<answer>{e.state.task.answers[0]}</answer>",
     "<answer>nothing</answer>"),
    ("search-qa", {"syntax": "json"}, lambda e: f"<answer>{e.state.task.answers[0]}</answer>",
     "<answer>nothing</answer>"),
    ("search-qa", {"syntax": "fenced"}, lambda e: f"<answer>{e.state.task.answers[0]}</answer>",
     "<answer>nothing</answer>"),
    ("countdown", {}, lambda e: e.gold_policy()(e.begin(e.state)).removeprefix("<think> </think> "),
     "<answer>1</answer>"),
    ("sudoku", {}, lambda e: e.gold_policy()(e.begin(e.state)).removeprefix("<think> </think> "),
     f"<answer>{'1' * 16}</answer>"),
    ("mastermind", {}, lambda e: f"<guess>{e.state.secret}</guess>", "<guess>555</guess>"),
    ("kuhn-poker", {}, lambda e: "<move>check</move>", "<move>bet</move>"),
    ("reference-qa", {}, lambda e: f"\n{e.state.reference}", "\nNo one knows."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "right", "wrong"), ANSWERED, ids=[f"{n}{o or ''}" for n, o, *_ in ANSWERED]
)
def test_a_drafted_answer_beats_no_real_one(name, options, right, wrong):
    env = envs.make(name, **options)
    env.reset(seed=0, options={"task": 0})
    answer, fresh = right(env), env.snapshot()

    def earned(text):
        env.restore(fresh)
        result = env.step(text)
        return result.reward, result.observation, result.terminated

    plain, mistaken = earned(answer), earned(wrong)
    assert plain != mistaken
    for frame in FRAMES.values():
        assert earned(frame.format(f"Maybe {wrong} or") + answer) == plain
        assert earned(frame.format(f"Maybe {answer} or") + wrong) == mistaken
    assert earned(f"<think>Maybe {answer}")[0] == earned("")[0]
    env.close()


def test_a_program_is_sought_behind_the_thought():
    env = envs.make("code-sandbox")
    env.reset(options={"task": 0})
    program = env.state.task.reference or envs.play.gold_of(env)(env.state.task.prompt)
    sources = {
        env._source(Action(text).content)
        for text in (
            f"```python\n{program}\n```",
            f"<think>\n```python\nx = 1\n```\n</think>\n{program}",
            f"<think>\n```python\nx = 1\n</think>\n```python\n{program}\n```",
            f"So:\n```python\nx = 1\n```\n</think>\n{program}",
            f"<think>Easy.</think>{program}",
        )
    }
    assert len({source.strip() for source in sources}) == 1
    assert env._source(Action(f"<think>```python\n{program}\n```").content) == ""
    env.close()


def test_an_in_place_call_continues_the_thought_in_which_it_is_made():
    """As in ReSearch, Search-R1 and ReTool, whose parsers read calls in thoughts."""
    env = envs.make("math", tools="calculator", max_turns=3)
    for behind, reward in ((r"Or \boxed{-77}.</think> ", 1.0), ("", 0.0)):
        answer = started(env)
        result = env.step("<think>Maybe <calculator>2 + 3</calculator>")
        assert result.observation == " <result> 5 </result> "
        assert env.step(rf"So: {behind}\boxed{{{answer}}}").reward == reward
    env.close()


WORDS = [
    ("a", "", ("", "a")),
    (" <think>\na\n</think>\n\nb ", "", ("a", "b ")),
    ("a</think>b", "<think>\n", ("a", "b")),
    ("a</think>b", "", ("a", "b")),
    ("<think>a", "", ("a", "")),
    ("a", "<think>", ("a", "")),
    ("a <think>b</think> c", "", ("b", "a  c")),
    ("<think>a</think>b<think>c</think>d", "", ("a\nc", "bd")),
    ("[THINK]a</think>[/THINK]b", "", ("a</think>", "b")),
    ("<think>a</think> The tag </think> ends it.", "", ("a", "The tag </think> ends it.")),
    ("Write `</think>` or `<think>` there.", "", ("", "Write `</think>` or `<think>` there.")),
    ("```\nx.split('</think>')\n```", "", ("", "```\nx.split('</think>')\n```")),
    ("b", "Sure: ", ("", "b")),
    ("b", "<think>a</think> ", ("", "b")),
]


@pytest.mark.parametrize(("text", "opening", "split"), WORDS)
def test_reasoning_is_split_from_the_rest(text, opening, split):
    assert split_reasoning(text, opening) == split


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<think>x</think>", "[/THINK]"])
def test_a_tag_in_an_argument_is_no_thought(tag):
    arguments = {"expression": f"grep '{tag}'"}
    row = json.dumps({"name": "calculator", "arguments": arguments})
    for text in (
        f"<tool_call>{row}</tool_call>",
        f"<think>{tag[:1]}</think>Now: <tool_call>{row}</tool_call>",
        f"<tool_call><function=calculator><parameter=expression>{arguments['expression']}"
        "</parameter></function></tool_call>",
        f"[TOOL_CALLS][{row}]",
        f"[TOOL_CALLS]calculator[ARGS]{json.dumps(arguments)}",
        row,
    ):
        assert [call.arguments for call in chat_calls(text)] == [arguments]
    assert JSON_CALL.parse(f"<tool_call>{row}</tool_call>").arguments == arguments


def test_final_answers_are_not_those_of_thoughts():
    assert final_answer(r"<think>\boxed{1}</think> So 2.") == "so 2"
    assert final_answer(r"<think>\boxed{1}") is None


@pytest.mark.parametrize(
    "piece",
    [
        *("<think>", "</think>", '{"name":[', '{"name": "', "<function=f>", "<tool_call>", "```"),
        *("<tool_call><function=f>", "<tool_call>{", "</parameter>", "<parameter=", "`</think>"),
        *("</function>", "[ARGS]{", " ", "[TOOL_CALLS]f[ARGS]{}"),
    ],
)
def test_no_text_takes_long(piece):
    text = piece * (60_000 // len(piece)) + "</think>"
    start = time.process_time()
    chat_calls(text)
    JSON_CALL.parse(text)
    split_reasoning(text)
    assert time.process_time() - start < 2.0

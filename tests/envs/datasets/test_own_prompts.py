"""Rows in verl's layout that say how to answer: math-v0 and search-qa-v0 add no second prompt."""

from __future__ import annotations

import pytest

import envs
from envs.adapters.verl import verl_rows
from envs.datasets import load_rows
from envs.math.answer_format import asked_answer, asks_for_answer
from envs.math.rows import OWN_INSTRUCTIONS, problems_from
from envs.search.rows import OWN_INSTRUCTIONS as OWN_SEARCH_INSTRUCTIONS
from envs.search.rows import questions_from
from tools.retrieval import Passage, index_passages

HASHES = 'How much is 9 + 9? Let\'s think step by step and output the final answer after "####".'
LINE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    'What is 17 + 17?\n\nRemember to put your answer on its own line after "Answer:".'
)
BOX = r"How much is 9 + 9? Let's think step by step and output the final answer within \boxed{}."
SEARCH = (
    "Answer the given question. If you lack some knowledge, you can call a search engine by "
    "<search> query </search>. Provide the answer inside <answer> and </answer>. "
    "Question: who wrote Faust?\n"
)


def row(prompt, gold):
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": "test"},
    }


def math_env(*rows, **options):
    return envs.make("math", tasks=list(rows), **{"split": "all", **options})


def begun(env, task):
    env.reset(seed=0, options={"task": task})
    return env.system_prompt


def paid(env, task, action):
    env.reset(seed=0, options={"task": task})
    return env.step(action).reward


def test_the_system_prompt_is_each_tasks_own():
    bare = row("How much is 9 + 9?", "18")
    env = math_env(row(HASHES, "18"), bare, row(LINE, "34"), row(BOX, "18"))
    assert [task.own_prompt for task in env.tasks] == [True, False, True, True]
    assert env.system_prompt is None  # Before the first episode: as the first task's.
    ours = r"Put the answer in \boxed{ }."
    assert [begun(env, task) for task in (0, 1, 2, 3, 1)] == [None, ours, None, None, ours]
    env.close()


def test_a_copy_in_mid_episode_keeps_its_tasks_prompt():
    env = math_env(row("How much is 9 + 9?", "18"), row(HASHES, "18"))
    begun(env, 1)
    twin = env.fork()
    assert twin.system_prompt is None
    env.close()
    twin.close()


def test_rules_of_tools_stay():
    env = math_env(row(HASHES, "18"), tools="calculator", max_turns=2)
    assert begun(env, 0) == env.tool_rules and "<calculator>" in env.tool_rules
    env.close()


def test_other_layouts_keep_the_environments_format():
    env = math_env({"question": HASHES, "answer": "18"})
    assert begun(env, 0) == r"Put the answer in \boxed{ }."
    assert paid(env, 0, "#### 18") == 0.0
    env.close()


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("9 + 9 = 18\n#### 18", 1.0),
        ("#### 17\nno:\n#### 18", 1.0),  # verl takes the last match, too.
        ("#### 18\nno:\n#### 17", 0.0),
        ("#### 18.0", 1.0),
        ("#### 18.", 1.0),
        ("####18", 0.0),  # verl's pattern wants one space.
        ("18", 0.0),
        ("Answer: 18", 0.0),
        (r"\boxed{18}", 1.0),
        (r"#### 18, so \boxed{17}", 0.0),
        (r"#### 18, so \boxed{18", 0.0),
    ],
)
def test_a_number_behind_hashes_counts_where_the_row_asks_for_it(action, reward):
    env = math_env(row(HASHES, "18"))
    assert paid(env, 0, action) == reward
    env.close()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 1,234,567", "1234567"),
        ("#### -3.50", "-3.50"),
        ("#### .", None),
        ("#### $1,018", "1018"),
        (r"#### -\$18.50", "-18.50"),
        ("#### **18**", "18"),
        ("#### $", None),
        ("### 18", None),
    ],
)
def test_what_stands_behind_hashes(text, answer):
    assert asked_answer(HASHES, text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So it is 34.\nAnswer: 34", "34"),
        ("answer : $34$.", "34"),
        ("**Answer:** 34", "34"),
        ("Answer: 1\nAnswer: \\frac{1}{2}", r"\frac{1}{2}"),
        ("#### 34", None),
        ("Answer:", None),
    ],
)
def test_a_last_line_counts_where_the_row_asks_for_it(text, answer):
    assert asked_answer(LINE, text) == answer


def test_a_prompt_to_be_continued_asks_for_no_form():
    assert not asks_for_answer("Question: How much is 9 + 9?\nAnswer:")
    assert asked_answer(BOX, "#### 18") is None


def test_one_notice_says_whose_prompt_is_used_and_the_way_back(caplog):
    rows = [row(HASHES, "18"), row("bare", "1"), row(LINE, "34")]
    problems_from(load_rows(rows))
    [said] = caplog.messages
    assert said == (
        "rows: the prompts of 2 of 3 rows say how to answer, so math-v0 adds no answer format of "
        f'its own to them; to add it: env.columns="{OWN_INSTRUCTIONS}"'
    )
    caplog.clear()
    problems_from(load_rows([row("bare", "1")]))
    assert caplog.messages == []
    env = math_env(*rows, columns=OWN_INSTRUCTIONS)
    assert env.reset(options={"task": 0})[0] == HASHES
    assert env.system_prompt == r"Put the answer in \boxed{ }."
    env.close()


def test_search_r1s_rows_keep_their_prompt(caplog):
    rows = [row(SEARCH, {"target": ["Goethe"]}), row("who wrote Emma?", {"target": ["Austen"]})]
    questions_from(load_rows(rows))
    [said] = caplog.messages
    assert said.startswith("rows: the prompts of 1 of 2 rows say how to answer, so search-qa-v0")
    assert said.endswith(f'env.columns="{OWN_SEARCH_INSTRUCTIONS}"')
    env = envs.make("search-qa", tasks=rows, split="all", syntax="search-r1")
    assert [task.own_prompt for task in env.tasks] == [True, False]
    assert begun(env, 0) is None
    assert paid(env, 0, "<answer> goethe </answer>") == 1.0
    ours = begun(env, 1)
    assert ours is not None and "To search, write <search> words </search>" in ours
    columns = OWN_SEARCH_INSTRUCTIONS
    back = envs.make("search-qa", tasks=rows, split="all", syntax="search-r1", columns=columns)
    assert begun(back, 0) == ours
    assert back.tasks[0].question == SEARCH.strip()
    assert back.tasks[0].answers == ("Goethe",)


def test_search_qa_keeps_the_rules_of_tools():
    rows = [row(SEARCH, {"target": ["Goethe"]})]
    env = envs.make("search-qa", tasks=rows, split="all", syntax="search-r1", tools="calculator")
    rules = begun(env, 0)
    assert rules == env.tool_rules and "calculator" in rules


def test_what_verl_reads_has_one_prompt():
    rows = [row(HASHES, "18"), row("How much is 9 + 9?", "18")]
    first, second = verl_rows("math", 2, tasks=rows, split="all")
    assert [said["role"] for said in first["prompt"]] == ["user"]
    assert [said["role"] for said in second["prompt"]] == ["system", "user"]


@pytest.mark.parametrize("tools", ["", "calculator"])
def test_math_with_such_rows_keeps_its_contract(tools):
    golds = {HASHES: "18", LINE: "34", BOX: "18", "How much is 9 + 9?": "18"}
    options = {"tools": tools, "max_turns": 1 + bool(tools)}
    env = math_env(*(row(prompt, gold) for prompt, gold in golds.items()), **options)
    assert envs.check_env(env, num_tasks=4).num_gold_tasks == 4
    env.close()


def test_search_qa_with_such_rows_keeps_its_contract(tmp_path):
    index_passages(iter([Passage("0", "Faust is by Goethe.", "Faust")]), tmp_path)
    rows = [row(SEARCH, {"target": ["Goethe"]}), row("who wrote Emma?", {"target": ["Austen"]})]
    options = {"syntax": "search-r1", "retriever": str(tmp_path)}
    env = envs.make("search-qa", tasks=rows, split="all", **options)
    assert envs.check_env(env, num_tasks=2).num_gold_tasks == 2
    env.close()

"""verl's Parquet rows, in and out: real files, written and read by pyarrow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import envs
from envs.adapters.verl import compute_score, verl_rows, write_parquet
from envs.datasets import Row, load_rows
from envs.datasets.verl_code import code_tests, json_of_tests
from envs.play import gold_of
from tools.sandbox import AssertTest, CallTest, StdioTest

pyarrow = pytest.importorskip("pyarrow")

GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [{"content": "How much is 2 + 2? Write #### and it.", "role": "user"}],
    "ability": "math",
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "extra_info": {"index": 0, "split": "train", "answer": "#### 4"},
}
NQ = {
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Who wrote Faust?"}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Goethe", "J. W. v. Goethe"]}},
    "extra_info": {"index": 7, "split": "val"},
}


def write(path, rows):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def code_row(gold):
    prompt = [
        {"role": "system", "content": "Write Python."},
        {"role": "user", "content": "Double."},
    ]
    return {**GSM8K, "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": gold}}


def test_math_reads_them(tmp_path):
    env = envs.make("math", tasks=write(tmp_path / "rows.parquet", [GSM8K]))
    assert env.reset(seed=0)[0] == GSM8K["prompt"][0]["content"]
    assert env.step(r"\boxed{4}").reward == 1.0
    env.close()


def test_search_qa_reads_search_r1s(tmp_path):
    source = write(tmp_path / "rows.parquet", [NQ])
    env = envs.make("search-qa", split="validation", tasks=source, syntax="search-r1")
    assert env.reset(seed=0)[0] == "Who wrote Faust?"
    assert env.tasks[0].answers == ("Goethe", "J. W. v. Goethe")
    assert env.step("<answer> goethe </answer>").reward == 1.0


@pytest.mark.parametrize(
    ("gold", "entry_point", "tests"),
    [
        (
            {"inputs": ["3\n", ["1", "2"]], "outputs": ["6\n", ["2"]]},
            "",
            (StdioTest("3\n", "6\n", "apps"), StdioTest("1\n2", "2", "apps")),
        ),
        (
            {"fn_name": "f", "inputs": [[3], "4\n[5]"], "outputs": [6, "8"]},
            "f",
            (CallTest((3,), 6, rules="apps"), CallTest((4, [5]), 8, rules="apps")),
        ),
        (["assert f(1) == 2"], "", (AssertTest("assert f(1) == 2"),)),
    ],
)
def test_the_layouts_of_tests(gold, entry_point, tests):
    row = Row("row 1", {"question": "?", "ground_truth": json.dumps(gold)})
    assert code_tests(row) == (entry_point, tests)
    if entry_point or isinstance(tests[0], StdioTest):
        again = Row("row 1", {"ground_truth": json_of_tests(entry_point, tests)})
        assert code_tests(again) == (entry_point, tests)


def test_programs_functions_and_asserts_are_graded(tmp_path):
    golds = [
        {"inputs": ["3\n", "4\n"], "outputs": ["6\n", "8\n"]},
        {"fn_name": "f", "inputs": [[3], [4]], "outputs": [6, 8]},
        ["assert f(3) == 6", "assert f(4) == 8"],
    ]
    source = write(tmp_path / "train.parquet", [code_row(json.dumps(gold)) for gold in golds])
    env = envs.make("code-sandbox", tasks=source)
    right = ["print(2 * int(input()))", "def f(x): return 2 * x", "def f(x): return x + x"]
    wrong = ["print(6)", "def f(x): return 6", "def f(x): return 6"]
    try:
        for task in range(3):
            for program, reward in ((right[task], 1.0), (wrong[task], 0.0)):
                assert env.reset(options={"task": task})[0] == "Write Python.\n\nDouble."
                assert env.step(program).reward == reward
    finally:
        env.close()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**GSM8K, "reward_model": {"style": "rule"}}, "row 1: expected verl's prompt .messages"),
        ({**GSM8K, "prompt": [{"role": "user"}]}, "KeyError: 'content'"),
        ({**GSM8K, "prompt": [{"role": "user", "content": ""}]}, "the prompt is empty"),
    ],
)
def test_broken_rows_are_named(tmp_path, row, says):
    with pytest.raises(ValueError, match=says):
        envs.make("math", tasks=write(tmp_path / "rows.parquet", [row]))


@pytest.mark.parametrize("gold", ["{", "{}", "[]", '{"inputs": ["1"], "outputs": []}', "3"])
def test_broken_tests_are_named(gold):
    with pytest.raises(ValueError, match=r"^row 9, ground_truth: "):
        code_tests(Row("row 9", {"ground_truth": gold}))


@pytest.mark.parametrize("name", ["math", "search-qa", "code-sandbox"])
def test_what_is_written_is_read_again(tmp_path, name):
    path = tmp_path / "train.parquet"
    assert write_parquet(path, name, 5) == 5
    rows = [row.columns for row in load_rows(path)]
    assert [row["extra_info"]["index"] for row in rows] == list(range(5))
    env, again = envs.make(name), envs.make(name, tasks=str(path), split="all")
    try:
        for task in range(5):
            question = env.reset(options={"task": task})[0]
            system = f"{env.system_prompt}\n\n" if env.system_prompt else ""
            assert again.reset(options={"task": task})[0] == system + question
            if name == "math":
                assert again.tasks[task].answer == env.tasks[task].answer
            elif name == "search-qa":
                assert again.tasks[task].answers == env.tasks[task].answers
            else:
                hidden = tuple(replace(test, rules="apps") for test in env.tasks[task].hidden)
                assert again.tasks[task].hidden == hidden
                assert again.tasks[task].entry_point == env.tasks[task].entry_point
    finally:
        env.close()
        again.close()


def test_verl_scores_with_our_reward():
    env = envs.make("knights-knaves", people=3)
    for row in verl_rows("knights-knaves", 3, people=3):
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        question = row["prompt"][-1]["content"]
        arguments = row["data_source"], row["reward_model"]["ground_truth"], row["extra_info"]
        answer = gold_of(env)(question)
        assert compute_score(arguments[0], answer, *arguments[1:]) == 3.0
        assert compute_score(arguments[0], "no", *arguments[1:]) == -3.0
        assert json.loads(row["extra_info"]["options"]) == {"people": 3}


def test_an_episode_of_many_turns_is_refused():
    row = next(verl_rows("mastermind", 1))
    with pytest.raises(ValueError, match="one response is not an episode of mastermind-v0"):
        compute_score(row["data_source"], "<guess> 123 </guess>", "", row["extra_info"])

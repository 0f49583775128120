"""Tasks from rows: MBPP, HumanEval, and what is wrong with a file."""

import asyncio
import gzip
import json

import numpy as np
import pytest

import envs
from envs.code import rows as code_rows
from envs.code.rows import load_tasks
from envs.datasets import load_rows

MBPP = {
    "task_id": 601,
    "text": "Write a function to double a number.",
    "code": "def helper(x):\r\n    return x\r\ndef double(x):\r\n    return 2 * helper(x)",
    "test_list": ["assert double(2) == 4", "assert double(-1) == -2"],
    "test_setup_code": "",
    "split": "train",
}
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x: int) -> int:\n    """ Twice x. """\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
    "entry_point": "double",
    "split": "train",
}


def tasks_from_rows(rows, split):
    return code_rows.tasks_from(load_rows(rows)).split(split)


def file_of(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_an_mbpp_row():
    (task,) = tasks_from_rows([MBPP], "train")
    assert task.prompt == (
        "Write a function to double a number.\n"
        "Your program must pass this test:\nassert double(2) == 4"
    )
    assert task.entry_point == "double"
    assert [test.code for test in task.public] == ["assert double(2) == 4"]
    assert [test.code for test in task.hidden] == MBPP["test_list"]


def test_an_mbpp_row_of_the_sanitised_kind_without_a_solution():
    row = {key: MBPP[key] for key in ("task_id", "test_list", "split")}
    row |= {"prompt": "Double.", "test_imports": ["import math"]}
    row["test_list"] = ["assert math.isclose(double(2), 4)", "assert set([double(1)]) == {2}"]
    (task,) = tasks_from_rows([row], "train")
    assert (task.entry_point, task.hidden[0].setup) == ("double", "import math")
    assert task.reference is None


def test_a_function_may_have_the_name_of_a_builtin_one():
    row = MBPP | {"code": "def sum(a, b): ...", "test_list": ["assert sum(10,15) == 6"]}
    assert tasks_from_rows([row], "train")[0].entry_point == "sum"


@pytest.mark.parametrize(
    ("row", "program", "reward"),
    [
        (MBPP, MBPP["code"], 1.0),
        (MBPP, "def double(x): return 4", 0.0),
        (MBPP, "def other(x): return 2 * x", 0.0),
        (HUMAN_EVAL, HUMAN_EVAL["canonical_solution"], 1.0),
        (HUMAN_EVAL, "```python\ndef double(x):\n    return x + x\n```", 1.0),
        (HUMAN_EVAL, "    return 4\n", 0.0),
        (HUMAN_EVAL, "", 0.0),
        (HUMAN_EVAL, "    import sys; sys.exit(0)", 0.0),
    ],
)
def test_programs_for_rows(tmp_path, row, program, reward):
    env = envs.make("code-sandbox-v0", tasks=file_of(tmp_path, row), format_reward=0.0)
    env.reset(seed=0)
    assert env.step(program).reward == reward
    env.close()


def test_human_eval_tests_may_call_helpers_of_the_prompt(tmp_path):
    row = HUMAN_EVAL | {
        "prompt": "def half(x):\n    return x / 2\n\n\ndef double(x):\n    '''Twice x.'''\n",
        "test": "def check(candidate):\n    assert half(candidate(3)) == 3\n",
    }
    env = envs.make("code-sandbox-v0", tasks=file_of(tmp_path, row))
    for program, reward in [("    return 2 * x", 1.0), ("    return x", 0.0)]:
        env.reset(seed=0)
        assert env.step(program).reward == reward
    env.close()


def test_two_turns_on_each_layout(tmp_path):
    path = file_of(tmp_path, MBPP, HUMAN_EVAL)
    env = envs.make("code-sandbox-v0", tasks=path, split="all", max_turns=2)
    env.reset(options={"task": 0})
    assert env.step("def double(x): return 5").observation == "assert double(2) == 4: returned 5"
    assert env.step(env.gold_policy()("")).reward == 1.0
    env.reset(options={"task": 1})
    assert "SyntaxError" in env.step("    return 2 *").observation
    assert env.step(env.gold_policy()("")).reward == 1.0
    env.reset(options={"task": 1})
    # It loads, and nothing more is public: the hidden tests decide.
    result = env.step("    return 5")
    assert (result.terminated, result.reward) == (True, 0.0)
    assert result.info["scores"]["public_passed"] == 1.0
    env.close()


def test_an_empty_answer_is_no_program_though_the_prompt_is_one(tmp_path):
    env = envs.make("code-sandbox-v0", tasks=file_of(tmp_path, HUMAN_EVAL), format_reward=0.5)
    env.reset(seed=0)
    assert env.step(" \n").reward == 0.0
    assert env.reward_floor == 0.5
    env.close()


@pytest.mark.parametrize("name", ["humaneval.jsonl.gz", "mbpp-419.jsonl.gz"])
def test_real_rows(data_dir, name):
    path = str(data_dir / name)
    splits = load_tasks(path).splits
    assert sum(map(len, splits.values())) == {"humaneval.jsonl.gz": 164}.get(name, 419)
    assert min(map(len, splits.values())) >= 10

    async def run():
        kind = envs.env_type("code-sandbox-v0")
        options = kind.Options(tasks=path, split="test", max_turns=2)
        async with kind.open_services(options) as services:
            env = envs.make_from("code-sandbox-v0", options, services)
            rewards = []
            for index in range(5):
                observation, _ = await env.areset(options={"task": index})
                rewards.append((await env.astep(env.gold_policy()(observation))).reward)
                await env.areset(options={"task": index})
                result = await env.astep("pass")
                rewards.append(result.reward if result.terminated else "continued")
            return rewards

    # MBPP reports the failed test; HumanEval reports nothing of a program that loads.
    assert asyncio.run(run()) == [1.0, "continued" if name.startswith("mbpp") else 0.0] * 5


def test_hash_splits_do_not_depend_on_order():
    rows = [
        {key: value for key, value in (MBPP | {"task_id": i}).items() if key != "split"}
        for i in range(300)
    ]
    there = {split: tasks_from_rows(rows, split) for split in ("train", "validation", "test")}
    back = {split: tasks_from_rows(rows[::-1], split) for split in there}
    assert {split: len(tasks) for split, tasks in there.items()} == {
        split: len(tasks) for split, tasks in back.items()
    }
    assert 200 < len(there["train"]) < 270


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x", "test_list": ["assert f(1)"]}, "row 2: no column 'task_id'; it has text"),
        ({"task_id": 1, "question": "x"}, "row 2: columns task_id, question are neither MBPP's"),
        (MBPP | {"test_list": []}, "row 2, column test_list: expected at least one assertion"),
        (
            {"task_id": 1, "text": "x", "test_list": ["assert 1", "assert 2"]},
            "row 2, column test_list: no function is called by every assertion",
        ),
        (MBPP | {"test_list": None}, "row 2, column test_list: expected a list of texts, got None"),
        (
            MBPP | {"test_list": "assert f(1)"},
            "column test_list: expected a list of texts, got 'as",
        ),
        (
            MBPP | {"test_list": [1]},
            r"row 2, column test_list: expected a list of texts, got \[1\]",
        ),
        (MBPP | {"test_list": ["assert double(1)==="]}, "row 2, column test_list: not Python"),
        (MBPP | {"code": 3}, "row 2, column code: expected a text, got 3"),
        (MBPP | {"text": None}, "row 2, column text: expected a text, got None"),
        (MBPP | {"test_setup_code": 3}, "row 2, column test_setup_code: expected a text, got 3"),
        (HUMAN_EVAL | {"test": "def check("}, "row 2, column test: not Python"),
        (HUMAN_EVAL | {"prompt": "def f(:"}, "row 2, column prompt: not Python"),
        (
            HUMAN_EVAL | {"entry_point": None},
            "row 2, column entry_point: expected a text, got None",
        ),
        (MBPP | {"split": "dev"}, r"row 2: split \('dev'\) must be one of train, validation, test"),
    ],
)
def test_a_broken_row_is_named(row, message):
    with pytest.raises(ValueError, match=message):
        tasks_from_rows([MBPP, row], "train")


def test_the_row_of_a_file_is_named_by_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n\n{json.dumps(MBPP)}\n\n{json.dumps(MBPP | {'code': 3})}\n")
    with pytest.raises(ValueError, match=r"rows.jsonl, line 5, column code: expected a text"):
        envs.make("code-sandbox-v0", tasks=str(tmp_path))


def test_an_empty_split_says_what_there_is(tmp_path):
    path = tmp_path / "human-eval-test.jsonl.gz"
    row = {key: value for key, value in HUMAN_EVAL.items() if key != "split"}
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"no rows in split 'train'; it has {'test': 1}"):
        envs.make("code-sandbox-v0", tasks=str(path))
    env = envs.make("code-sandbox-v0", tasks=str(path), split="test")
    assert len(env.tasks) == 1


def test_a_row_without_a_solution_has_no_gold_and_rows_have_no_demonstrator(tmp_path):
    row = {key: value for key, value in MBPP.items() if key != "code"}
    env = envs.make("code-sandbox-v0", services={}, tasks=file_of(tmp_path, row))
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="no reference solution"):
        env.gold_policy()(observation)
    with pytest.raises(NotImplementedError, match="rows have no imperfect author"):
        env.demonstrator(np.random.default_rng(0))

"""Rows in APPS' layout, played to their end."""

from __future__ import annotations

import json

import pytest

import envs
from envs.code.rows import tasks_from
from envs.datasets import Row
from tools.sandbox import StdioTest

STDIO = {
    "problem_id": 7,
    "question": "Double each number.",
    "solutions": json.dumps(["for x in input().split():\n    print(2 * int(x))", "broken"]),
    "input_output": json.dumps({"inputs": ["1 2\n", ["3"]], "outputs": ["2\n4\n", ["6"]]}),
    "difficulty": "introductory",
    "url": "",
    "starter_code": "",
    "split": "test",
}
METHOD = {
    "problem_id": 8,
    "question": "Sort the pairs.",
    "solutions": json.dumps(
        ["class Solution:\n    def pairs(self, xs: List[int], n):\n        return sorted(xs)[:n]"]
    ),
    "input_output": json.dumps(
        {
            "fn_name": "pairs",
            "inputs": [[[3, 1, 2], 2], [[5], 1], [[4, 4], 0]],
            "outputs": [[[1, 2]], [[5]], [[]]],
        }
    ),
    "starter_code": "class Solution:\n    def pairs(self, xs: List[int], n: int) -> List[int]:\n",
    "split": "test",
}


@pytest.fixture
def play(tmp_path):
    made = []

    def run(row: dict, *programs: str, **options):
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row))
        env = envs.make("code-sandbox", tasks=str(path), split="test", **options)
        made.append(env)
        first, _ = env.reset(seed=0)
        return env, first, [env.step(program) for program in programs]

    yield run
    for env in made:
        env.close()


def test_a_program_reads_and_prints(play):
    right = "print(*[2 * int(x) for x in input().split()], sep='\\n')"
    env, first, steps = play(STDIO, "print(2)", right, max_turns=2)
    assert first.startswith("Double each number.\nWrite a Python program that reads")
    assert steps[0].observation == r"on input '1 2\n' it printed '2\n', expected '2\n4\n'"
    assert (steps[1].reward, steps[1].terminated) == (1.0, True)
    assert env.tasks[0].hidden == (
        StdioTest("1 2\n", "2\n4\n", "apps"),
        StdioTest("3", "6", "apps"),
    )


def test_the_gold_policy_is_the_first_solution(play):
    for row in (STDIO, METHOD):
        env, first, _ = play(row)
        assert env.step(env.gold_policy()(first)).reward == 1.0


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("class Solution:\n  def pairs(self, xs: List[int], n):\n    return sorted(xs)[:n]", 1.0),
        ("def pairs(xs, n): return tuple(sorted(xs)[:n])", 1.0),
        ("def pairs(xs, n): return [sorted(xs)[:n]]", 1.0),
        ("def pairs(xs, n): return heapq.nsmallest(n, xs)", 1.0),
        ("def pairs(xs, n): return sorted(xs)[: n + 1]", 0.0),
        ("class Solution:\n  def other(self, xs, n):\n    return sorted(xs)[:n]", 0.0),
        ("", 0.0),
    ],
)
def test_a_function_or_a_method_is_called(play, program, reward):
    _, first, [step] = play(METHOD, program)
    assert first == (
        "Sort the pairs.\nWrite it as it begins here:\n```python\nclass Solution:\n"
        "    def pairs(self, xs: List[int], n: int) -> List[int]:\n```"
    )
    assert step.reward == reward


def test_a_functions_first_test_is_shown(play):
    _, _, [step] = play(METHOD, "def pairs(xs, n): return 0", max_turns=2)
    assert step.observation == "pairs([3, 1, 2], 2) returned 0, expected [[1, 2]]"


def test_rows_without_tests_are_left_out():
    rows = [Row("r 1", STDIO | {"input_output": ""}), Row("r 2", dict(STDIO))]
    assert len(tasks_from(rows).split("test")) == 1
    with pytest.raises(ValueError, match=r"rows: no rows in split 'test'; it has \{\}"):
        tasks_from(rows[:1]).split("test")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (STDIO | {"input_output": "{"}, "column input_output: not JSON"),
        (STDIO | {"input_output": "[1]"}, "column input_output: expected an object"),
        (STDIO | {"input_output": {"inputs": ["1"], "outputs": []}}, "1 inputs, but 0 outputs"),
        (STDIO | {"input_output": {"inputs": "1", "outputs": []}}, "must be lists"),
        (STDIO | {"solutions": "[1]"}, "column solutions: expected a list of texts"),
        (STDIO | {"question": ""}, "column question: expected a text"),
        (
            STDIO | {"input_output": {"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}},
            "inputs of a function must be lists, got '1'",
        ),
        (
            STDIO | {"input_output": {"inputs": [[1]], "outputs": [1], "fn_name": "f("}},
            r"fn_name \('f\('\) must be a name",
        ),
        ({"task_id": 1, "a": 1}, "columns task_id, a are neither MBPP's .* nor APPS' .question"),
    ],
)
def test_broken_rows_are_named(row, says):
    with pytest.raises(ValueError, match=f"^r 1.*{says}"):
        tasks_from([Row("r 1", dict(row))])

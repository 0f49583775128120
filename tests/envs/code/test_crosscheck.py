"""The brute-force cross-check: inputs like the tests', what is compared, what a mismatch costs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import envs
from envs.code.crosscheck import CrossCheck, can_cross_check, cross_check, small_calls
from envs.code.task import CodeTask
from tools.sandbox import AssertTest, CallTest, StdioTest, make_sandbox


def task(*tests: Any, reference: str | None = "def f(x): return x", prelude: str = "") -> CodeTask:
    return CodeTask("Write f.", "f", tests[:1], tests, prelude, reference)


def test_inputs_are_small_of_the_tests_kinds_and_always_the_same():
    arguments = (
        700,
        -3,
        2.5,
        "héé",
        [9, 9, -4],
        (1, "ab"),
        {"k": 3, "j": 1},
        {5},
        None,
        True,
        b"q",
    )
    one = task(CallTest(arguments, 0, {"by": 12}))
    drawn = small_calls(one, 200)
    assert drawn == small_calls(one, 200)
    assert drawn != small_calls(task(CallTest(arguments, 1), CallTest((5,), 1)), 200)
    kinds = [type(value) for value in arguments]
    for call in drawn:
        assert [type(value) for value in call.args] == kinds
        natural, negative, real, text, values, record, table, some, nothing, _, raw = call.args
        assert 0 <= natural <= 9 and -9 <= negative <= 9 and 0 <= real <= 9
        assert set(text) <= set("hé") and len(text) <= 5
        assert len(values) <= 5 and all(-9 <= value <= 9 for value in values)
        assert 0 <= record[0] <= 9 and set(record[1]) <= set("ab")
        assert set(table) <= {"k", "j"} and some <= set(range(10)) and len(raw) <= 5
        assert nothing is None and 0 <= call.kwargs["by"] <= 9
    assert len({repr(call.args) for call in drawn}) > 150
    assert {len(call.args[4]) for call in drawn} == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("made", "can"),
    [
        (task(CallTest((1,), 1)), True),
        (task(AssertTest("assert f(1) == 1")), True),
        (task(AssertTest("assert f(1) in (1, 2)")), False),
        (task(AssertTest("assert f(1) == 1", setup="import math")), False),
        (task(StdioTest("1", "1")), False),
        (task(CallTest((), 1)), False),
        (task(CallTest((1,), 1), reference=None), False),
    ],
)
def test_what_it_takes(made, can):
    assert can_cross_check(made) is can


FIRST = "def f(xs): return xs[0]"
"""A reference that has no answer for the empty list."""


@pytest.mark.parametrize(
    ("program", "made", "agrees"),
    [
        ("def f(xs): return sorted(xs)[0]", task(CallTest(([1, 2],), 1), reference=FIRST), False),
        ("def f(xs): return xs[0] if xs else 0", task(CallTest(([1],), 1), reference=FIRST), True),
        (FIRST, task(CallTest(([1],), 1), reference=FIRST), True),
        (
            "def f(x): return x * 0.1 * 10",
            task(CallTest((0.5,), 0.5), reference="def f(x): return x"),
            True,
        ),
        ("def f(x): return x + 1e-9", task(CallTest((3,), 3)), False),
        ("def f(x): return None", task(CallTest((3,), 3), reference="def f(x): pass"), True),
        ("def f(x): return 0", task(CallTest((3,), 3), reference="def f(x): pass"), False),
        (
            "def f(x): return x + ONE",
            task(CallTest((3,), 4), reference="def f(x): return 1 + x", prelude="ONE = 1\n"),
            None,
        ),
    ],
)
async def test_what_is_compared(program, made, agrees):
    async with make_sandbox() as sandbox:
        found = await cross_check(sandbox, made, made.prelude + program, 30)
    if agrees is None:
        assert found == CrossCheck(30, 30)
    assert found.agreed is (agrees is not False)
    assert 15 <= found.num_compared <= 30
    if made.reference == FIRST:
        assert found.num_compared < 30, "the empty lists"


def test_a_program_that_the_tests_let_pass_is_rejected():
    row = {
        "task_id": 1,
        "text": "Write double(x).",
        "code": "def double(x): return 2 * x",
        "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
        "split": "test",
    }
    squared = "def double(x): return x ** 2"
    for count, reward in ((0, 1.0), (20, 0.0)):
        for mode in ("all", "fraction"):
            step = play_row(row, squared, cross_check=count, hidden_tests=mode)
            assert step.reward == reward
            assert step.info["scores"]["passed"] == reward
            assert ("cross_checked" in step.info["scores"]) is bool(count)
    assert step.info["scores"]["cross_checked"] == 20.0
    assert 1.0 <= step.info["scores"]["cross_equal"] < 20.0
    honest = play_row(row, "def double(x): return x + x", cross_check=20)
    assert honest.reward == 1.0
    assert honest.info["scores"]["cross_equal"] == 20.0
    wrong = play_row(row, "def double(x): return 7", cross_check=20)
    assert wrong.info["scores"]["cross_checked"] == 0.0, "nothing is asked where no test passed"


def play_row(row: dict, program: str, **options) -> envs.StepResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text(json.dumps(row))
        env = envs.make("code-sandbox", tasks=str(path), split="test", **options)
        try:
            env.reset(seed=0)
            return env.step(program)
        finally:
            env.close()


def test_rows_that_cannot_be_checked_are_refused():
    row = {
        "task_id": "x/1",
        "prompt": "def double(x):\n    '''Twice x.'''\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
        "canonical_solution": "    return 2 * x\n",
        "split": "test",
    }
    with pytest.raises(ValueError, match=r"cross_check: no task of .* has both a reference"):
        play_row(row, "    return 2 * x", cross_check=5)
    with pytest.raises(ValueError, match=r"cross_check \(-1\) must be from 0 to 1000"):
        play_row(row, "    return 2 * x", cross_check=-1)


def test_the_gold_policy_of_generated_tasks_agrees():
    env = envs.make("code-sandbox", cross_check=25)
    try:
        for index in range(5):
            observation, _ = env.reset(seed=0, options={"task": index})
            step = env.step(env.gold_policy()(observation))
            assert step.reward == 1.0
            assert step.info["scores"]["cross_equal"] == 25.0
    finally:
        env.close()

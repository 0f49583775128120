"""Test code that the host runs as a call; the verdict is the same either way."""

from __future__ import annotations

import pytest

from tools.sandbox import AssertTest, OutcomeKind
from tools.sandbox.grading.literal import Call, call_of


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("assert f(1) == 2", Call("f", (1,), {}, 2)),
        ("assert f() == None\n", Call("f", (), {}, None)),
        (
            "assert f([1, -2.5], {'a': (1j, b'x')}, k={3}) == ['y', True]",
            Call("f", ([1, -2.5], {"a": (1j, b"x")}), {"k": {3}}, ["y", True]),
        ),
    ],
)
def test_a_call_compared_with_a_literal_is_a_call(code, call):
    assert call_of(AssertTest(code), "f") == call
    assert call_of(AssertTest(code), None) == call


@pytest.mark.parametrize(
    "code",
    [
        "assert f(1) == 2, 'a message'",
        "assert f(1) is 2",
        "assert f(1) == 2 == 2",
        "assert f(1) != 2",
        "assert f(1)",
        "assert not f(1)",
        "assert 2 == f(1)",
        "assert f(f(1)) == 2",
        "assert f(x) == 2",
        "assert f(*[1]) == 2",
        "assert f(**{'a': 1}) == 2",
        "assert f(1) == set([2])",
        "assert f(1) == 1 + 1",
        "assert f(1) == ...",
        "assert f({[]: 1}) == 2",
        "assert f(1).upper() == 'x'",
        "assert g.f(1) == 2",
        "assert f(1) == 2; assert f(2) == 3",
        "x = f(1)\nassert x == 2",
        "assert f(1) == f'{1}'",
        "assert f(1 == 2",
        "assert f(1) == " + "9" * 5000,
        "assert f(" + "[" * 500 + "]" * 500 + ") == 1",
        "assert f('\0') == 1",
        "",
    ],
)
def test_everything_else_runs_as_test_code(code):
    assert call_of(AssertTest(code), "f") is None


def test_with_a_setup_the_code_runs():
    assert call_of(AssertTest("assert f(1) == 2", setup="f = len"), "f") is None


def test_a_call_of_another_name_runs_as_test_code():
    assert call_of(AssertTest("assert g(1) == 2"), "f") is None
    assert call_of(AssertTest("assert sum([1]) == 1"), None) is None, "a builtin is never a stub"
    assert call_of(AssertTest("assert sum([1]) == 1"), "sum") is not None


in_module_loop = pytest.mark.asyncio(loop_scope="module")

SUBMISSIONS = {
    "right": "def f(x):\n    return [x, (x,)]",
    "equal": "def f(x):\n    return [float(x), (True,)] if x == 1 else [x, (x,)]",
    "wrong": "def f(x):\n    return [x, [x]]",
    "raises": "def f(x):\n    raise KeyError(x)",
    "raises what tests swallow": "def f(x):\n    raise StopIteration",
    "odd value": "def f(x):\n    return object()",
    "always equal": "class E(list):\n    __eq__ = lambda *_: True\ndef f(x):\n    return E()",
    "absent": "def g(x):\n    return x",
    "exits": "import sys\ndef f(x):\n    sys.exit(0)",
    "is killed": "import os\ndef f(x):\n    os._exit(0)",
    "does not load": "def f(x:",
}
KINDS = {
    "right": OutcomeKind.PASSED,
    "equal": OutcomeKind.PASSED,
    "wrong": OutcomeKind.WRONG,
    "always equal": OutcomeKind.WRONG,
    "is killed": OutcomeKind.KILLED,
}


@in_module_loop
@pytest.mark.parametrize("name", SUBMISSIONS)
@pytest.mark.parametrize("entry_point", ["f", None])
async def test_both_ways_give_the_same_verdict(either, name, entry_point):
    direct = AssertTest("assert f(1) == [1, (1,)]")
    code = AssertTest("assert f(1) == [1, (1,)], ''")
    verdicts = [
        await either.grade(SUBMISSIONS[name], [test], entry_point) for test in (direct, code)
    ]
    expected = KINDS.get(name, OutcomeKind.ERROR)
    assert [v.outcomes[0].kind for v in verdicts] == [expected] * 2
    assert [v.passed for v in verdicts] == [expected is OutcomeKind.PASSED] * 2


@in_module_loop
async def test_a_wrong_answer_is_shown(either):
    verdict = await either.grade("def f(x):\n    return 7", [AssertTest("assert f(1) == 8")], "f")
    assert verdict.outcomes[0].value == 7

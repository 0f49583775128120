"""Rows of APPS, verl and LiveCodeBench, graded as by the graders of these projects.

The verdicts were made by running the three graders themselves on these programs.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from importlib.machinery import PathFinder

import pytest

import envs
from envs.code import rows as rows_module
from envs.code.rows import MissingPackages

SOLUTION = "class Solution:\n    def f(self, xs: List[int]) -> int:\n        return sum(xs)"


def apps(inputs, outputs, **tests):
    return {"question": "?", "input_output": {"inputs": inputs, "outputs": outputs, **tests}}


def verl(inputs, outputs, **tests):
    gold = {"inputs": inputs, "outputs": outputs, **tests}
    if tests.get("fn_name"):
        gold["inputs"] = ["\n".join(map(json.dumps, given)) for given in inputs]
        gold["outputs"] = [json.dumps(expected) for expected in outputs]
    return {
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"ground_truth": json.dumps(gold)},
    }


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def livecodebench(inputs, outputs, pack=packed, **metadata):
    if metadata:
        inputs = ["\n".join(map(json.dumps, given)) for given in inputs]
        outputs = [json.dumps(expected) for expected in outputs]
    kind = "functional" if metadata else "stdin"
    pairs = zip(inputs, outputs, strict=True)
    tests = [{"input": one, "output": two, "testtype": kind} for one, two in pairs]
    return {
        "question_title": "T",
        "question_content": "Add.",
        "question_id": "abc301_a",
        "platform": "atcoder",
        "difficulty": "easy",
        "starter_code": "class Solution:\n    def f(self, xs):" if metadata else "",
        "public_test_cases": json.dumps(tests[:2]),
        "private_test_cases": pack(tests[2:]),
        "metadata": json.dumps(metadata),
    }


def rewards(pairs, **options):
    """The reward of each program for its row."""
    env = envs.make("code-sandbox", tasks=[row for row, _ in pairs], split="all", **options)
    try:
        found = []
        for task, (_, program) in enumerate(pairs):
            env.reset(options={"task": task})
            found.append(env.step(program).reward)
        return found
    finally:
        env.close()


NUMBERS = [
    ("0.2500000000", "0.25", 1.0),
    ("3", "3.0", 1.0),
    ("0.5\n1e-07\n", "0.50\n0.0000001", 1.0),
    ("a b", "a \t b", 1.0),
    ("0.25", "0.26", 0.0),
    ("1000000", "1000009", 0.0),
    ("0011", "11", 0.0),
    ("1 2", "2 1", 0.0),
]
FUNCTIONS = [
    (3, [[1, 2]], SOLUTION, 1.0),
    (4, [[1, 2]], SOLUTION, 0.0),
    (3, [[1, 2]], f"def f(xs): return 0\n{SOLUTION}", 1.0),
    (3, [[1, 2]], f"from __future__ import annotations\n{SOLUTION}", 1.0),
    (3, [[1, 2]], "def f(xs: Optional[List[int]]): return max(Counter(xs)) + 1", 1.0),
    (3, [[1, 2]], "def f(xs): return gcd(9, 12) if inf > 5 else pow(3, 1, 5)", 1.0),
    ([1, 2], [0], "def f(x): return (1, 2)", 1.0),
    ([[1, 2]], [0], "def f(x): return (1, 2)", 1.0),
    ([[1, 2]], [0], "def f(x): return [(1, 2)]", 1.0),
    ([1, 2], [0], "def f(x): return [2, 1]", 0.0),
    (3, [0], "def f(x): return '3'", 0.0),
    (1, [0], "def f(x): return [1]", 0.0),
    ({"1": 2}, [0], "def f(x): return {1: 2}", 1.0),
    ([{"-1": 2}], [0], "def f(x): return {-1: 2}", 1.0),
    ({"1": [{"2": 3}]}, [0], "def f(x): return {1: ({2: 3},)}", 1.0),
    ({"a": 2}, [0], "def f(x): return {'a': 2}", 1.0),
    ({"1": 2}, [0], "def f(x): return {2: 2}", 0.0),
    (2, [{"1": 2}], "def f(d): return d[1]", 1.0),
    (2, [{"1": 2, "a": 3}], "def f(d): return d['1']", 1.0),
    (2, [5, {"1": 2}], "def f(x, d): return d['1']", 1.0),
]


@pytest.mark.parametrize("layout", [apps, verl])
def test_programs_and_functions(layout):
    pairs = [(layout([""], [said]), f"print({text!r})") for said, text, _ in NUMBERS]
    for expected, given, program, _ in FUNCTIONS:
        pairs.append((layout([given], [expected], fn_name="f"), program))
    wanted = [reward for *_, reward in NUMBERS + FUNCTIONS]
    assert list(zip(pairs, rewards(pairs), strict=True)) == list(zip(pairs, wanted, strict=True))


def test_an_import_is_not_the_function_to_write():
    assert rewards([(apps([[4, 6]], [2], fn_name="gcd"), "pass")]) == [0.0]


@pytest.mark.parametrize("pack", [packed, json.dumps])
def test_programs_of_livecodebench(pack):
    row = livecodebench(["1 2", "2 2", "3 4"], ["3", "4", "7"], pack)
    env = envs.make("code-sandbox", tasks=[row], split="all", max_turns=2)
    try:
        first, _ = env.reset(seed=0)
        assert (
            first == "Add.\nWrite a Python program that reads standard input and prints the answer."
        )
        assert (len(env.tasks[0].public), len(env.tasks[0].hidden)) == (2, 3)
        assert "printed '3" in env.step("print(3)").observation
        assert env.step("print(sum(map(float, input().split())))").reward == 1.0
        env.reset(seed=0)
        assert (
            env.step("x = sum(map(int, input().split())); print(x if x < 7 else 8)").reward == 0.0
        )
    finally:
        env.close()


def test_functions_of_livecodebench():
    long = livecodebench(
        [[[1, 2]], [[3]], [[10**9] * 60_000]], [3, 3, 60_000 * 10**9], func_name="f"
    )
    row = livecodebench([[[1, 2]]], [3], func_name="f")
    pair = livecodebench([[0]], [[1, 2]], func_name="f")
    answers = [
        (long, SOLUTION, 1.0),
        (row, "def f(xs): return sum(xs)", 1.0),
        (row, "def f(xs): return [sum(xs)]", 0.0),
        (pair, "def f(x): return (1, 2)", 1.0),
        (pair, "def f(x): return [1, 2, 3]", 0.0),
    ]
    assert rewards([answer[:2] for answer in answers]) == [answer[2] for answer in answers]


def test_a_decimal_of_livecodebench_is_exact():
    row = livecodebench([""] * 3, ["Yes\n0.3333333333"] * 3)
    texts = ["Yes\n0.33333333330", "Yes\n0.333333"]
    assert rewards([(row, f"print({text!r})") for text in texts]) == [1.0, 0.0]


class Other:
    """Pickled by its name."""


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("private_test_cases", "[", "column private_test_cases: neither JSON nor packed JSON"),
        ("private_test_cases", "?", "column private_test_cases: neither JSON nor packed JSON"),
        (
            "private_test_cases",
            base64.b64encode(zlib.compress(pickle.dumps(Other()))).decode(),
            "expected a pickled text, got .*GLOBAL",
        ),
        (
            "private_test_cases",
            base64.b64encode(zlib.compress(b"x" * 99)[:-6]).decode(),
            "incomplete, or more than 512 MiB",
        ),
        ("public_test_cases", "[1]", "column public_test_cases: expected a list of tests"),
        ("metadata", "{", "column metadata: neither JSON"),
        ("metadata", '{"func_name": "f"}', "test 1: not JSON"),
        ("question_content", None, "column question: expected a text"),
    ],
)
def test_a_broken_row_of_livecodebench_is_named(column, value, says):
    row = livecodebench(["a", "b", "c"], ["d", "e", "f"]) | {column: value}
    with pytest.raises(ValueError, match=f"^row 1.*{says}"):
        envs.make("code-sandbox", tasks=[row], split="all")


WITHOUT_REFERENCE = [
    (
        "import math",
        ["assert math.isclose(f(1), 4.18879, rel_tol=1e-3)"],
        "def f(r): return 4.18879",
        "def f(r): return 5",
    ),
    (
        "from math import isclose",
        ["assert isclose(f(1), 2.0)"],
        "def f(x): return 2",
        "def isclose(*a): return True",
    ),
    (
        "from math import *",
        ["assert isclose(f(1), 2.0)"],
        "def f(x): return 2",
        "def f(x): return 3",
    ),
    (
        "",
        ["from decimal import Decimal\nassert Decimal(f(1)) == Decimal('0.5')"],
        "def f(x): return '0.5'",
        "def f(x): return '0.6'",
    ),
    (
        "from collections import Counter as C",
        ["assert C(f('aab')) == C('aba')", "assert C(f('')) == C()"],
        "def f(x): return x",
        "def f(x): return 'aa'",
    ),
    (
        "",
        ["assert set(sorted(f(2))) == {0, 1}"],
        "def f(n): return range(n)[::1] and [0, 1]",
        "",
    ),
    (
        "",
        ["assert ' '.join(f(1)) == 'a b'"],
        "def f(x): return ['a', 'b']",
        "def f(x): return []",
    ),
    (
        "def near(a, b):\n    return abs(a - b) < 1e-3",
        ["assert near(f(1), 2)"],
        "def f(x): return 2.0001",
        "def f(x): return 3\ndef near(a, b): return True",
    ),
    (
        "",
        ["def check(candidate):\n    assert candidate(2) == 4\ncheck(f)"],
        "def f(x): return 2 * x",
        "def f(x): return 5",
    ),
    (
        "",
        ["for x, y in [(1, 2), (2, 4)]:\n    z = f(x)\n    assert z == y"],
        "def f(x): return 2 * x",
        "def f(x): return 2",
    ),
    (
        "",
        ["assert decode(encode('ab')) == 'ab'", "assert encode('a') == 'b'"],
        "def encode(s): return chr(ord(s[0]) + 1) + s[1:]\n"
        "def decode(s): return chr(ord(s[0]) - 1) + s[1:]",
        "def encode(s): return s\ndef decode(s): return s",
    ),
]
"""Setup and tests of a row without a reference, a right program and a wrong one."""


def test_the_function_under_test_without_a_reference():
    pairs = []
    for setup, tests, right, wrong in WITHOUT_REFERENCE:
        row = {"task_id": 1, "text": "?", "test_list": tests, "test_setup_code": setup}
        pairs += [(row, right), (row, wrong)]
    assert rewards(pairs) == [1.0, 0.0] * len(WITHOUT_REFERENCE)


PLUS = {
    "task_id": 1,
    "prompt": "def f(x):\n    '''Half of x.'''\n",
    "entry_point": "f",
    "canonical_solution": "    return x / 2\n",
    "test": "import numpy as np\ndef check(f):\n    np.testing.assert_allclose(f(1), 0.5)\n",
}


def test_tests_that_import_a_missing_package_end_the_load():
    prefix = "import math, nosuch\nfrom nosuch_either.stats import norm\n"
    guarded = "try:\n    import nosuch\nexcept ImportError:\n    pass\n"
    test = "def check(f): pass"
    rows = [PLUS | {"test": prefix + test}, PLUS | {"test": guarded + test}]
    says = (
        r"^rows: the tests of 1 of 2 tasks import nosuch, nosuch_either, which.* pip install nosuch"
    )
    with pytest.raises(MissingPackages, match=says):
        envs.make("code-sandbox", tasks=rows, split="all")
    assert len(envs.make("code-sandbox", services={}, tasks=rows[1:], split="all").tasks) == 1


def test_a_sandbox_without_the_package_ends_the_start(tmp_path, monkeypatch):
    (tmp_path / "nosuch.py").touch()  # only this process finds it
    monkeypatch.setattr(rows_module, "_SITE", [str(tmp_path)])
    row = PLUS | {"test": "import nosuch\ndef check(f): pass"}
    with pytest.raises(MissingPackages, match="1 of 1 tasks import nosuch, which"):
        rewards([(row, "    return x / 2")])


@pytest.mark.skipif(
    PathFinder.find_spec("numpy", rows_module._SITE) is None,
    reason="the interpreter itself lacks numpy",
)
def test_tests_that_import_numpy():
    pairs = [(PLUS, PLUS["canonical_solution"]), (PLUS, "    return x / 3")]
    assert rewards(pairs) == [1.0, 0.0]


def test_a_row_whose_test_cannot_be_sent_is_left_out(caplog):
    rows = [
        apps([[1]], [1], fn_name="f"),
        apps([[1]], [[0] * 60_000], fn_name="f"),
        apps(["\ud800"], ["1"]),
    ]
    env = envs.make("code-sandbox", services={}, tasks=rows, split="all")
    assert len(env.tasks) == 1
    assert "2 of 3 rows are left out" in caplog.text and "row 2: tests[0]: more than" in caplog.text

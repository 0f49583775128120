"""The sentence that an agent reads, and the program that is taken from its answer."""

import time

import pytest

from envs.code.feedback import blank, feedback
from envs.code.task import CodeTask, extract_program
from tools.sandbox import AssertTest, CallTest, Outcome, OutcomeKind, StdioTest, Verdict

CALLS = (CallTest(([0],), 4), CallTest(([1, 2],), [5]), CallTest((), "x", {"key": 2}))


def said(tests, *outcomes, detail=""):
    task = CodeTask("prompt", "f", tests, (CallTest(([7],), 77),))
    verdict = Verdict(False, outcomes, 0.0, "none", "none", "nothing", detail)
    return feedback(task, verdict)


def outcome(kind, value=None, *rest):
    return Outcome(OutcomeKind(kind), value, *rest)


PASSED = outcome("passed", 0)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([outcome("wrong", 2), PASSED, PASSED], "f([0]) returned 2, expected 4"),
        ([PASSED, outcome("wrong", None), PASSED], "f([1, 2]) returned None, expected [5]"),
        ([PASSED, PASSED, outcome("wrong", "y")], "f(key=2) returned 'y', expected 'x'"),
        (
            [outcome("error", None, "ZeroDivisionError", "division by zero", 3), PASSED, PASSED],
            "f([0]) raised ZeroDivisionError: division by zero (line 3), expected 4",
        ),
        (
            [outcome("error", None, "SyntaxError", "invalid syntax (program.py, line 1)", 1)] * 3,
            "f([0]) raised SyntaxError: invalid syntax (program.py, line 1), expected 4",
        ),
        ([outcome("timeout"), PASSED, PASSED], "f([0]) ran out of time, expected 4"),
        ([outcome("memory"), PASSED, PASSED], "f([0]) ran out of memory, expected 4"),
        ([outcome("killed"), PASSED, PASSED], "f([0]) ended the process, expected 4"),
        ([outcome("output"), PASSED, PASSED], "f([0]) printed too much, expected 4"),
        # The tests run in any order: what the third one killed did not fail by itself.
        (
            [outcome("not_run"), PASSED, outcome("killed")],
            "f(key=2) ended the process, expected 'x'",
        ),
        ([outcome("not_run")] * 3, "f([0]) was not run, expected 4"),
    ],
)
def test_the_first_call_that_failed(outcomes, expected):
    assert said(CALLS, *outcomes) == expected


def test_assertions_and_programs():
    assertion = (AssertTest("assert f(2) == 4"),)
    assert said(assertion, outcome("wrong", 5)) == "assert f(2) == 4: returned 5"
    failed = outcome("wrong", None, "AssertionError", "")
    assert said(assertion, failed) == "assert f(2) == 4: failed"
    assert (
        said(assertion, outcome("error", None, "NameError", "no function 'f'"))
        == "assert f(2) == 4: raised NameError: no function 'f'"
    )
    program = (StdioTest("3\n", "9\n"),)
    assert (
        said(program, outcome("wrong", "6\n"))
        == "on input '3\\n' it printed '6\\n', expected '9\\n'"
    )


def test_a_program_that_fails_as_a_whole_gets_a_message():
    text = "the process ended badly: killed"
    assert said(CALLS, PASSED, PASSED, PASSED, detail=text) == text


def test_long_values_are_cut():
    text = said(CALLS, outcome("wrong", "a" * 5000), PASSED, PASSED)
    assert text == f"f([0]) returned '{'a' * 199}..., expected 4"


def test_values_that_cannot_be_printed_are_described():
    text = said(CALLS, outcome("wrong", [10**5000]), PASSED, PASSED)
    assert text == "f([0]) returned a number too long to show, expected 4"
    text = said(CALLS, outcome("error", None, "ValueError", "bad \ud800"), PASSED, PASSED)
    assert text == "f([0]) raised ValueError: bad \\ud800, expected 4"


def test_blank_feedback_has_no_value_in_it():
    task = CodeTask("prompt", "f", CALLS, CALLS)
    assert blank(task) == "f(?) returned ?, expected ?"


@pytest.mark.parametrize(
    ("action", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("    return 1\n", "    return 1\n"),
        ("Sure:\n```python\ndef f(): pass\n```\nDone.", "def f(): pass\n"),
        ("```py\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("First\n```python\na\n```\nbetter\n```python\nb\n```", "b\n"),
        ("```python\n    return 1\n```", "    return 1\n"),
        ("thinking ```python\ndef f(): pass", "def f(): pass"),
        ("use `f` there", "use `f` there"),
        ("", ""),
        ("```python\nmark = '```'\nprint(mark)\n```\nDone.", "mark = '```'\nprint(mark)\n"),
        (
            '```python\ndef f():\n    """As in\n\n    ```python\n    f()\n    ```\n    """\n```',
            'def f():\n    """As in\n\n    ```python\n    f()\n    ```\n    """\n',
        ),
        ("1. So:\n    ```python\n    f()\n    ```\n2. Done", "f()\n"),
        ("1. So:\n  ```py\n  def f():\n\n    g()\n x\n  ```", "def f():\n\n  g()\nx\n"),
        ("```python\nprint(3)\n```\nIt prints\n```\n3\n```\n", "print(3)\n"),
        ("```\nb\n```\n```\na\n```", "a\n"),
        ("```\nplan\n```\n```py\na\n```\n```text\nc\n```", "a\n"),
        ("```Python3\na\n```", "a\n"),
        ('```python title="a.py"\na\n```', "a\n"),
        ("```python\r\na\r\n```\r\nwell", "a\r\n"),
        ("```py\na\n```\nso\n```python-repl\n>>> a\n```", "a\n"),
        ("```python\nf()```\nThen\n```python\ng()```\nwell", "g()"),
        ("```python\nf()``` does it, and `g` not", "f()"),
        ("So:\n~~~python\nf()\n~~~\nDone.", "f()\n"),
        ("1. So:\n   ~~~\n   f()\n   ~~~\n", "f()\n"),
        ("```python\nx = (\n~~~y)\n```", "x = (\n~~~y)\n"),
        ("f = ~~~x", "f = ~~~x"),
    ],
)
def test_the_program_in_an_answer(action, program):
    assert extract_program(action) == program


@pytest.mark.parametrize(
    "line",
    ["mark = '```'", '"""As in ```f()```."""', '    """\n    ```\n    """', "# ```py"],
    ids=["quoted", "inline", "indented", "comment"],
)
def test_a_fence_inside_a_string_does_not_cut_the_program(line):
    program = f"def f():\n    pass\n\n{line}\nf()\n"
    assert extract_program(f"Sure:\n```python\n{program}```\nDone.") == program


@pytest.mark.parametrize(
    "action",
    [
        "```" + " " * 400_000 + "x",
        "```python" + "\t" * 400_000 + "x",
        "```py\n    ```\n" * 30_000,
        "```py\na```b\n" * 40_000,
        "``` x" * 80_000,
        "`" * 400_000,
        "".join(" " * indent + "```\n" for indent in range(2_000)),
    ],
    ids=["blanks", "tabs", "indented", "inline", "fences", "ticks", "steps"],
)
def test_a_degenerate_answer_is_read_in_linear_time(action):
    started = time.thread_time()
    extract_program(action)
    assert time.thread_time() - started < 5  # a quadratic search takes minutes

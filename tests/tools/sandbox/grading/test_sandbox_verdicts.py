"""Verdicts, and the separation of test code and submissions."""

from __future__ import annotations

import pytest

from tools.sandbox import AssertTest, CallTest, Limits, OutcomeKind, StdioTest, make_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

# f(x) must be x * x + 7 for these: a submission cannot guess this from the arguments.
CALLS = [CallTest((x,), x * x + 7) for x in (3, 11, 2)]
ASSERTS = [AssertTest(f"assert f({x}) == {x} * {x} + 7") for x in (3, 11, 2)]
LIMITS = Limits(wall_s=2.0)


async def test_a_candidates_stop_iteration_does_not_pass(either):
    """``all(map(...))`` would treat the candidate's StopIteration as the end of the checks."""
    test = AssertTest("assert all(map(lambda x: f(x) == x * x + 7, range(5)))")
    verdict = await either.grade("def f(x): raise StopIteration", [test], "f")
    assert verdict.outcomes[0].kind is OutcomeKind.ERROR
    assert "StopIteration" in verdict.outcomes[0].message


async def test_test_code_cannot_swallow_the_death_of_the_candidate(either):
    test = AssertTest("try:\n    f(1)\nexcept BaseException:\n    pass")
    verdict = await either.grade("import os\ndef f(x): os._exit(0)", [test], "f")
    assert (verdict.passed, verdict.outcomes[0].kind) == (False, OutcomeKind.KILLED)


# JSON would join the two lone surrogates of the second text to the one character of the third.
TEXTS = ("\ud800", "\ud800\udc00", "\U00010000", "\udc00\ud800", "\udfffa\udbff\udfff\0")


async def test_lone_surrogates_reach_a_submission_and_come_back(either):
    codes = [[ord(character) for character in text] for text in TEXTS]
    seen = [CallTest((text,), code) for text, code in zip(TEXTS, codes, strict=True)]
    verdict = await either.grade("def f(x): return [ord(c) for c in x]", seen, "f")
    assert verdict.passed, verdict
    made = [
        CallTest((code,), {text: [text]}, {"word": text})
        for text, code in zip(TEXTS, codes, strict=True)
    ]
    source = "def f(x, word):\n    t = ''.join(map(chr, x))\n    return {t: [word]}"
    verdict = await either.grade(source, made, "f")
    assert verdict.passed, verdict
    assert [outcome.value for outcome in verdict.outcomes] == [test.expected for test in made]


async def test_every_code_point_reaches_a_submission_and_comes_back(either):
    texts = ["".join(map(chr, range(first, first + (1 << 16)))) for first in (0, 1 << 16, 16 << 16)]
    texts.append("\ud83d\ude00" * 20_000 + texts[0][::-1])
    source = "def f(x): return x, len(x), hash(x) == hash(''.join(map(chr, map(ord, x))))"
    tests = [CallTest((text,), (text, len(text), True)) for text in texts]
    verdict = await either.grade(source, tests, "f", limits=Limits(wall_s=20.0))
    assert [outcome.kind for outcome in verdict.outcomes] == [OutcomeKind.PASSED] * 4


async def test_lone_surrogates_pass_between_a_submission_and_its_test_code(either):
    source = "def f(x): return x, [ord(c) for c in x]"
    tests = [
        AssertTest(f"text, codes = f({text!r})\nassert text == {text!r} and len(codes) == {size}")
        for text, size in zip(TEXTS, map(len, TEXTS), strict=True)
    ]
    tests += [
        AssertTest(f"assert f({text!r}) == ({text!r}, {[*map(ord, text)]})") for text in TEXTS
    ]
    verdict = await either.grade(source, tests, "f")
    assert verdict.passed, verdict
    joined = await either.grade("def f(x): return '\\U00010000'", [CallTest((1,), TEXTS[1])], "f")
    assert joined.outcomes[0].kind is OutcomeKind.WRONG


async def test_test_code_may_expect_an_exception(either):
    test = AssertTest(
        "try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'negative'\n"
        "else:\n    assert False"
    )
    source = "def f(x):\n    if x < 0: raise ValueError('negative')"
    assert (await either.grade(source, [test], "f")).passed
    assert not (await either.grade("def f(x): pass", [test], "f")).passed


async def test_without_an_entry_point_every_undefined_name_is_the_candidates(either):
    source = "def f(x): return x + 1\ndef g(x): return x - 1"
    test = AssertTest("import math\nassert f(g(5)) == 5 and math.pi > h", setup="h = 3")
    assert (await either.grade(source, [test])).passed


async def test_with_an_entry_point_helpers_come_from_the_setup(either):
    source = "def helper(x): return 0\ndef f(x): return -1"
    test = AssertTest("assert helper(f(4)) == 0", setup="def helper(x): return x")
    verdict = await either.grade(source, [test], "f")
    assert not verdict.passed
    without = AssertTest("assert helper(f(4)) == 0")
    verdict = await either.grade(source, [without], "f")
    assert verdict.outcomes[0].error_type == "NameError"


async def test_a_failed_assertion_names_its_line(either):
    test = AssertTest("x = f(2)\nassert x == 5")
    verdict = await either.grade("def f(x): return x", [test], "f")
    (outcome,) = verdict.outcomes
    assert (outcome.kind, outcome.line) == (OutcomeKind.WRONG, 2)
    assert outcome.message == "assert x == 5"


async def test_test_code_that_hangs_is_a_timeout(either):
    verdict = await either.grade(
        "def f(x): return x",
        [AssertTest("while True: pass"), AssertTest("assert f(1) == 1")],
        "f",
        limits=Limits(wall_s=0.6),
    )
    assert not verdict.passed
    assert verdict.outcomes[0].kind is OutcomeKind.TIMEOUT


async def test_a_death_after_the_last_answer_fails_the_submission(either):
    source = (
        "import os\nos._exit = lambda code: os.kill(os.getpid(), 9)\ndef f(x): return x * x + 7"
    )
    verdict = await either.grade(source, CALLS, "f")
    assert not verdict.passed
    assert verdict.num_passed == 3
    assert "ended badly: killed" in verdict.detail


async def test_output_over_the_cap_fails_the_test_it_was_printed_in(either):
    source = "def f(x):\n    print('x' * (2 << 20), flush=True)\n    return x * x + 7"
    verdict = await either.grade(source, CALLS, "f")
    assert not verdict.passed
    kinds = sorted(o.kind for o in verdict.outcomes)
    assert kinds == [OutcomeKind.NOT_RUN, OutcomeKind.NOT_RUN, OutcomeKind.OUTPUT]


async def test_each_input_has_its_own_process(either):
    source = "import os\nx = int(input())\nprint(x * 2, end=' \\n\\n')\nopen('n', 'x').close()"
    tests = [StdioTest(f"{n}\n", f"{2 * n}\n") for n in range(3)]
    verdict = await either.grade(source, tests)
    assert verdict.passed, verdict
    assert [o.value for o in verdict.outcomes] == ["0 \n\n", "2 \n\n", "4 \n\n"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("print(int(input()) * 3)", OutcomeKind.WRONG),
        ("print(int(input()) * 2)\nimport sys; sys.exit(1)", OutcomeKind.ERROR),
        ("print(int(input()) * 2, flush=True)\nimport os; os.abort()", OutcomeKind.KILLED),
        ("print(int(input()) * 2, flush=True)\nwhile True: pass", OutcomeKind.TIMEOUT),
        ("", OutcomeKind.WRONG),
    ],
)
async def test_the_right_output_must_come_with_exit_code_0(either, source, kind):
    limits = Limits(wall_s=0.6 if kind is OutcomeKind.TIMEOUT else 30.0)
    verdict = await either.grade(source, [StdioTest("4", "8")], limits=limits)
    assert (verdict.passed, verdict.outcomes[0].kind) == (False, kind)


async def test_kinds_of_tests_mix(either):
    source = "def f(x): return x * x + 7\nif __name__ == '__main__': print(f(int(input())))"
    verdict = await either.grade(source, [*CALLS, *ASSERTS, StdioTest("1", "8")], "f")
    assert (verdict.passed, verdict.num_passed) == (True, 7)


async def test_the_same_forgeries_fail_unconfined():
    """The protocol does not depend on the confinement."""
    with pytest.warns(UserWarning, match="unconfined"):
        made = make_sandbox("unsafe-local", LIMITS)
    async with made as sandbox:
        for source in (
            "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
            "import os\ndef f(x): os._exit(0)",
        ):
            assert not (await sandbox.grade(source, CALLS, "f")).passed
        verdict = await sandbox.grade("def f(x): return x * x + 7", CALLS + ASSERTS, "f")
        assert (verdict.passed, verdict.isolation) == (True, "none")

"""Conformance: verdicts that a submission tries to forge, by calls and by test code."""

from __future__ import annotations

import time

import pytest

from tools.sandbox import AssertTest, CallTest, Limits, OutcomeKind, StdioTest, make_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

# f(x) must be x * x + 7 for these: nothing that a submission can guess from the arguments.
CALLS = [CallTest((x,), x * x + 7) for x in (3, 11, 2)]
ASSERTS = [AssertTest(f"assert f({x}) == {x * x + 7}") for x in (3, 11, 2)]
LIMITS = Limits(wall_s=2.0)

# What is tried, in words -> a submission that tries it.
FORGERIES = {
    "exit with 0 at import": "import sys; sys.exit(0)",
    "hard exit with 0 at import": "import os; os._exit(0)",
    "exit with 0 in the call": "def f(x): raise SystemExit(0)",
    "hard exit with 0 in the call": "import os\ndef f(x): os._exit(0)",
    "death by a signal in the call": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "quit with exit handlers": "import atexit, os\natexit.register(os._exit, 0)\nf = exit",
    "an object equal to everything": (
        "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return E()"
    ),
    "an integer that lies": (
        "class E(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
        "    __hash__ = int.__hash__\ndef f(x): return E(0)"
    ),
    "a string that lies": (
        "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n"
        "def f(x): return E('')"
    ),
    "a list that lies": (
        "class E(list):\n    def __eq__(s, o): return True\n"
        "    def __iter__(s): return iter([16])\n"
        "def f(x): return E()"
    ),
    "a float that is equal to nothing": "def f(x): return float('nan')",
    "an object that pickles into code": (
        "class E:\n    def __reduce__(s): return (exec, ('1',))\ndef f(x): return E()"
    ),
    "an exception that lies": (
        "class E(BaseException):\n    def __eq__(s, o): return True\ndef f(x): raise E()"
    ),
    "stop of an iteration": "def f(x): raise StopIteration",
    "end of a generator": "def f(x): raise GeneratorExit",
    "an interrupt": "def f(x): raise KeyboardInterrupt",
    "a failed assertion": "def f(x): assert False",
    "a printed mark": "print('passed'); print('OK')\ndef f(x): print('[\"value\", 16, 1]')",
    "a mark on standard error": "import sys\ndef f(x): sys.stderr.write('PASSED\\n')",
    "a name of the entry point that is no function": "f = 16",
    "no entry point": "def g(x): return x * x + 7",
    "a coroutine": "async def f(x): return x * x + 7",
    "a generator": "def f(x): yield x * x + 7",
    "the function itself": "def f(x): return f",
    "its arguments": "def f(*a, **k): return a",
    "a list that contains itself": "def f(x):\n    a = []; a.append(a); return a",
    "a value that nests without end": (
        "def f(x):\n    a = []\n    for _ in range(100000): a = [a]\n    return a"
    ),
    "an enormous value": "def f(x): return 'x' * (4 << 20)",
    "an enormous integer": "def f(x): return 1 << (1 << 25)",
    "patched builtins": (
        "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.bool = lambda *a: True\n"
        "builtins.all = lambda *a: True\nbuiltins.len = lambda a: 0\ndef f(x): return None"
    ),
    "a patched codec of its own process": (
        "import sys, gc\nfor o in gc.get_objects():\n"
        "    if type(o) is type(sys) and o.__name__.endswith('codec'):\n"
        "        o.encode = lambda value, depth=0: ['i', '10']\ndef f(x): return object()"
    ),
    "a search for the expected value in frames and objects": (
        "import sys, gc\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "            if isinstance(v, int) and v > 10 and v != x: return v\n"
        "            if type(v).__name__ == 'CallTest': return v.expected\n"
        "        frame = frame.f_back\n"
        "    for o in gc.get_objects():\n"
        "        if type(o).__name__ == 'CallTest': return o.expected\n"
    ),
    "a mutated argument": "def f(x):\n    global f\n    f = lambda y: y\n    return x",
    "answers written to every descriptor": (
        'import os, struct\nbody = b\'["value",["i","10"],1]\'\n'
        "def f(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body * 2)\n"
        "        except OSError: pass\n"
    ),
    "answers before there are questions": (
        'import os, struct\nfor n in range(1, 9):\n    body = b\'["value",["i","10"],%d]\' % n\n'
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\ndef f(x): return 0"
    ),
    "an answer to another question": (
        "import os, struct\ndef f(x):\n"
        '    body = b\'["value",["i","%x"],99]\' % (x * x + 7)\n'
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n    os._exit(0)\n"
    ),
    "a verdict written to every descriptor": (
        "import os, struct\nbody = b'[\"passed\",0]'\ndef f(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n"
    ),
    "a frame that never ends": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'\\xff\\xff\\xff\\xff' + b'x' * 100)\n"
        "        except OSError: pass\n"
    ),
    "bytes that are no frame": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'\\0\\0\\0\\3{{{')\n        except OSError: pass\n"
    ),
    "deep brackets": (
        "import os, struct\nbody = b'[' * 500000\ndef f(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n"
        "    os._exit(0)"
    ),
    "an answer by a late thread": (
        "import threading, time, os\ndef late():\n    time.sleep(0.2)\n    os._exit(0)\n"
        "def f(x):\n    threading.Thread(target=late).start()\n    time.sleep(1)"
    ),
    "a forked twin that answers as well": ("import os\ndef f(x):\n    os.fork()\n    return 0"),
    "closed descriptors": "import os\ndef f(x): os.closerange(3, 64)",
    "a planted result": (
        "for n in ('reward.txt', 'result.json', 'conftest.py', 'pytest.ini'):\n"
        "    open(n, 'w').write('{\"passed\": true, \"reward\": 1.0}')\ndef f(x): return None"
    ),
    "silence": "import time\ndef f(x): time.sleep(60)",
    "a flood": "def f(x):\n    while True: print('passed' * 1000)",
    "keys that collide": ("def f(x): return {k * (2 ** 61 - 1): 0 for k in range(1, 400)}"),
    "a truthy nothing": "def f(x): return True",
    "the right answer as text": "def f(x): return str(x * x + 7)",
    "the right answer in a list": "def f(x): return [x * x + 7]",
}

HONEST = {
    "plain": "def f(x): return x * x + 7",
    "a lambda": "f = lambda x: x * x + 7",
    "with prints": "print('loading')\ndef f(x):\n    print('called', x)\n    return x * x + 7",
    "with a guard that exits": (
        "import sys\ndef f(x): return x * x + 7\nif __name__ == '__main__': sys.exit(1)"
    ),
    "as a float": "def f(x): return float(x * x + 7)",
    "with a cache": "import functools\n@functools.cache\ndef f(x): return x * x + 7",
    "in a class": "class S:\n    def __call__(self, x): return x * x + 7\nf = S()",
    "with threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def f(x):\n    with ThreadPoolExecutor(2) as p: return sum(p.map(int, [x * x, 7]))"
    ),
    "with a daemon thread that goes on": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def f(x): return x * x + 7"
    ),
    "with a thread that goes on": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n"
        "def f(x): return x * x + 7"
    ),
    "with caught exceptions": (
        "def f(x):\n    try: return 1 / 0\n    except ZeroDivisionError: return x * x + 7"
    ),
    "with files": (
        "def f(x):\n    open('n', 'w').write(str(x))\n    return int(open('n').read()) ** 2 + 7"
    ),
    "as a subclass of int": "class I(int): pass\ndef f(x): return I(x * x + 7)",
}


@pytest.mark.parametrize("tests", [CALLS, ASSERTS], ids=["calls", "asserts"])
@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forgery_fails(mostly_bwrap, name, tests):
    started = time.monotonic()
    verdict = await mostly_bwrap.grade(FORGERIES[name], tests, "f", limits=LIMITS)
    assert not verdict.passed
    assert verdict.num_passed == 0, verdict
    assert time.monotonic() - started < LIMITS.wall_s + 3
    assert len(verdict.outcomes) == 3


@pytest.mark.parametrize("tests", [CALLS, ASSERTS], ids=["calls", "asserts"])
@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_submission_passes(mostly_bwrap, name, tests):
    started = time.monotonic()
    verdict = await mostly_bwrap.grade(HONEST[name], tests, "f", limits=LIMITS)
    assert verdict.passed, verdict
    assert time.monotonic() - started < LIMITS.wall_s


async def test_an_ended_iteration_in_test_code_is_no_pass(either):
    """``all`` of a ``map`` would take the candidate's StopIteration for the end of the checks."""
    test = AssertTest("assert all(map(lambda x: f(x) == x * x + 7, range(5)))")
    verdict = await either.grade("def f(x): raise StopIteration", [test], "f")
    assert verdict.outcomes[0].kind is OutcomeKind.ERROR
    assert "StopIteration" in verdict.outcomes[0].message


async def test_a_death_cannot_be_swallowed_by_test_code(either):
    test = AssertTest("try:\n    f(1)\nexcept BaseException:\n    pass")
    verdict = await either.grade("import os\ndef f(x): os._exit(0)", [test], "f")
    assert (verdict.passed, verdict.outcomes[0].kind) == (False, OutcomeKind.KILLED)


async def test_test_code_may_expect_an_exception(either):
    test = AssertTest(
        "try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'negative'\n"
        "else:\n    assert False"
    )
    source = "def f(x):\n    if x < 0: raise ValueError('negative')"
    assert (await either.grade(source, [test], "f")).passed
    assert not (await either.grade("def f(x): pass", [test], "f")).passed


async def test_builtins_of_the_candidate_do_not_reach_test_code(either):
    source = "def set(x): return 0\ndef sorted(x): return 0\ndef f(x): return [1]"
    test = AssertTest("assert set(f(1)) == set([2])")
    assert not (await either.grade(source, [test])).passed
    test = AssertTest("assert sorted(f(1)) == [1]")
    assert (await either.grade(source, [test])).passed


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


async def test_a_setup_never_answers_for_the_candidate(either):
    test = AssertTest("assert f(3) == 16", setup="def f(x): return x * x + 7")
    assert not (await either.grade("def f(x): return 0", [test], "f")).passed
    assert (await either.grade("def f(x): return 16", [test], "f")).passed


async def test_output_over_the_cap_fails_the_test_it_was_printed_in(either):
    source = "def f(x):\n    print('x' * (2 << 20), flush=True)\n    return x * x + 7"
    verdict = await either.grade(source, CALLS, "f")
    assert not verdict.passed
    kinds = sorted(o.kind for o in verdict.outcomes)
    assert kinds == [OutcomeKind.NOT_RUN, OutcomeKind.NOT_RUN, OutcomeKind.OUTPUT]


async def test_each_input_has_a_process_of_its_own(either):
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
async def test_the_right_output_must_end_well(mostly_bwrap, source, kind):
    verdict = await mostly_bwrap.grade(source, [StdioTest("4", "8")], limits=Limits(wall_s=0.6))
    assert (verdict.passed, verdict.outcomes[0].kind) == (False, kind)


async def test_kinds_of_tests_mix(either):
    source = "def f(x): return x * x + 7\nif __name__ == '__main__': print(f(int(input())))"
    verdict = await either.grade(source, [*CALLS, *ASSERTS, StdioTest("1", "8")], "f")
    assert (verdict.passed, verdict.num_passed) == (True, 7)


async def test_the_same_forgeries_fail_unconfined():
    """The protocol does not rest on the confinement."""
    with pytest.warns(UserWarning, match="unconfined"):
        made = make_sandbox("unsafe-local", LIMITS)
    async with made as sandbox:
        for name in ("an object equal to everything", "hard exit with 0 in the call"):
            assert not (await sandbox.grade(FORGERIES[name], CALLS, "f")).passed
        verdict = await sandbox.grade(HONEST["plain"], CALLS + ASSERTS, "f")
        assert (verdict.passed, verdict.isolation) == (True, "none")

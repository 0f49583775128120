"""Complaint 14: an answer can write its own reward, or run code where rewards are computed.

OpenEnv#1200, terminal-bench#1127, verl#7603 (CVE-2026-6878, eval of an answer), verl#7853.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import envs

FORGERIES = {
    "leaves with success": "import sys\nsys.exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "prints a verdict": 'print(\'{{"passed": true, "outcomes": ["passed"]}}\')',
    "equals everything": (
        "class Yes:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "def f(*a): return Yes()"
    ),
    "looks for the tests": (
        "import gc, sys\n"
        "def f(*a):\n"
        "    for o in gc.get_objects():\n"
        "        if isinstance(o, dict) and 'expected' in o: return o['expected']\n"
        "    return sys._getframe(1).f_locals.get('expected')"
    ),
    "writes on every descriptor": (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, b'{\"passed\": true}')\n"
        "    except OSError: pass\n"
    ),
}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("math", r"\boxed{{{}}}"),
        ("countdown", "<answer> {} </answer>"),
        ("mastermind", "<guess> {} </guess>"),
        ("sudoku", "<answer> {} </answer>"),
        ("knights-knaves", "<think> </think> <answer> {} </answer>"),
        ("reasoning-gym/leg_counting", "<answer>{}</answer>"),
    ],
)
def test_no_answer_is_run_where_rewards_are_computed(name, write):
    # Not in tmp_path: its digits may contain the right answer, which leg_counting's scorer rewards.
    trace = Path("/tmp/turnwise-an-answer-was-run")
    if trace.exists():
        trace.rmdir()
    payload = f"__import__('os').mkdir('{trace}')"
    env = envs.make(name)
    try:
        env.reset(seed=0)
        result = env.step(write.format(payload))
        assert result.reward <= env.reward_floor
    finally:
        env.close()
    assert not trace.exists()


def test_a_scorer_that_evaluates_answers_is_refused():
    with pytest.raises(ValueError, match="scorer of n_queens evaluates answers as Python"):
        envs.make("reasoning-gym/n_queens")


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_program_cannot_forge_its_verdict(forgery):
    env = envs.make("code-sandbox", max_turns=1)
    try:
        env.reset(seed=0)
        result = env.step(FORGERIES[forgery])
        assert (result.reward, result.terminated) == (0.0, True)
    finally:
        env.close()


def test_programs_do_not_see_the_trainers_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the answer")
    env = envs.make("code-sandbox", max_turns=1)
    try:
        env.reset(seed=0)
        env.step(f"open({str(secret)!r}, 'w').write('changed')\n")
    finally:
        env.close()
    assert secret.read_text() == "the answer"
    assert os.access(secret, os.W_OK)

"""Rows of published puzzles in the games: Logic-RL's, TinyZero's, and those of the others."""

from __future__ import annotations

import json

import pytest

import envs
from envs.play import gold_of, play

QUIZ = (
    "A very special island is inhabited only by knights and knaves. You meet 2 inhabitants: Zoey, "
    'and Oliver. Zoey remarked, "Oliver is not a knight". Oliver stated, "Oliver is a knight if '
    'and only if Zoey is a knave". So who is a knight and who is a knave?'
)
ROLES = "(1) Zoey is a knave\n(2) Oliver is a knight"
KNIGHTS = {
    "k-and-k": {
        **{"quiz": QUIZ, "names": ["Zoey", "Oliver"], "solution": [False, True]},
        **{"knight_knave": {"knight": "knight"}, "solution_text": "Zoey is a knave, and Oliver..."},
    },
    "logic-rl": {
        **{"quiz": QUIZ, "data_source": "kk_logic", "prompt": [{"role": "user", "content": "p"}]},
        "reward_model": {
            "ground_truth": {"solution_text_format": ROLES, "statements": "()"},
            "style": "rule",
        },
    },
    "plain": {"question": QUIZ, "answer": ROLES},
}
COUNTDOWN = {
    "tiny-zero": {"target": 98, "nums": [44, 19, 35]},
    "tiny-zero-verl": {
        "prompt": [{"role": "user", "content": "Using the numbers [44, 19, 35], ..."}],
        "reward_model": {"ground_truth": {"target": 98, "numbers": [44, 19, 35]}, "style": "rule"},
        "extra_info": {"split": "test", "index": 0},
    },
}
PUZZLE, SOLUTION = "1034340201434320", "1234341221434321"


def made(env_id, row, **options):
    return envs.make(env_id, tasks=[row], split="all", **options)


def gold_reward(env):
    return sum(step.reward for step in play(env, gold_of(env), task=0).steps)


@pytest.mark.parametrize("row", KNIGHTS.values(), ids=list(KNIGHTS))
def test_knights_and_knaves(row):
    env = made("knights-knaves", row)
    question, _ = env.reset(options={"task": 0})
    assert question == QUIZ
    right = "<think> </think> <answer> (1) Zoey is a knave (2) Oliver is a knight </answer>"
    assert env.step(right).reward == 3.0
    assert gold_reward(env) == 3.0
    env.reset(options={"task": 0})
    assert env.step(right.replace("knave", "knight")).reward == -0.5


@pytest.mark.parametrize("row", COUNTDOWN.values(), ids=list(COUNTDOWN))
def test_countdown(row):
    env = made("countdown", row, use_all=True)
    question, _ = env.reset(options={"task": 0})
    assert question == "Numbers: 44 19 35. Make 98."
    assert env.step("<think> </think> <answer> 44 + 19 + 35 </answer>").reward == 1.0
    assert gold_reward(env) == 1.0
    assert env.difficulty(0) == 0.0


@pytest.mark.parametrize(
    "row",
    [
        {"puzzle": PUZZLE, "solution": SOLUTION},
        {"question": PUZZLE.replace("0", "."), "answer": SOLUTION},
        {"puzzle": [[int(c) for c in PUZZLE[i : i + 4]] for i in range(0, 16, 4)]},
    ],
)
def test_sudoku(row):
    env = made("sudoku", row)
    question, _ = env.reset(options={"task": 0})
    assert question.splitlines()[0] == "1 _ 3 4"
    assert gold_reward(env) == 1.0
    assert env.difficulty(0) == pytest.approx(4 / 48)


@pytest.mark.parametrize("code", ["123", 123, [1, 2, 3]])
def test_mastermind(code):
    env = made("mastermind", {"code": code})
    env.reset(options={"task": 0})
    assert env.step("<guess> 123 </guess>").reward == 1.0
    assert gold_reward(env) == 1.0


@pytest.mark.parametrize(
    ("env_id", "row", "says"),
    [
        ("countdown", {"n": [1, 2]}, "row 1: no column nums or numbers; it has n; name yours by"),
        ("countdown", {"nums": [1.5, 2], "target": 3}, "expected two or more natural numbers"),
        ("countdown", {"nums": [1, 2], "target": -3}, "expected a natural number as target"),
        ("knights-knaves", {"quiz": "q"}, "no column solution_text_format or solution_text or"),
        ("knights-knaves", {"quiz": "q", "answer": "I do not know"}, "expected who is a knight or"),
        ("mastermind", {"code": "12"}, r"code \('12'\) must have 3 digits from 1 to 5: see"),
        ("sudoku", {"puzzle": "0" * 81}, "expected 16 digits from 0 to 4, got 81: give size=9"),
        ("sudoku", {"puzzle": "0" * 16}, "the puzzle has 2 solutions"),
        ("sudoku", {"puzzle": SOLUTION}, "the puzzle has no empty cell"),
        ("sudoku", {"puzzle": PUZZLE, "solution": PUZZLE[::-1]}, "the solution is none: it diff"),
    ],
)
def test_a_broken_row_is_named(env_id, row, says):
    with pytest.raises(ValueError, match=f"row 1: .*{says.removeprefix('row 1: ')}"):
        made(env_id, row)


def test_columns_are_named_by_the_user_and_splits_hold(tmp_path):
    rows = [{"zahlen": [1, 2, i], "ziel": 3 + i} for i in range(100)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    options = {"tasks": str(tmp_path / "rows.json"), "columns": "nums=zahlen target=ziel"}
    splits = {s: envs.make("countdown", split=s, **options).tasks for s in ("train", "test", "all")}
    assert len(splits["all"]) == 100
    assert not set(splits["train"]) & set(splits["test"])


@pytest.mark.parametrize("env_id", ["countdown", "knights-knaves", "sudoku", "mastermind"])
def test_rows_keep_the_contract(env_id):
    row = {
        "countdown": COUNTDOWN["tiny-zero"],
        "knights-knaves": KNIGHTS["plain"],
        "sudoku": {"puzzle": PUZZLE, "solution": SOLUTION},
        "mastermind": {"code": "321"},
    }[env_id]
    rows = [{**row, "split": split} for split in ("train", "test")]
    env = envs.make(env_id, tasks=rows, split="test")
    assert len(env.tasks) == 1
    assert gold_reward(env) == env.reward_range[1]

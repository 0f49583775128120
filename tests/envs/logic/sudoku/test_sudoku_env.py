"""sudoku-v0: its protocol, its rewards, its options."""

from __future__ import annotations

import pytest

import envs
from envs.logic.sudoku.env import SudokuEnv, SudokuOptions
from envs.logic.sudoku.grid import SudokuTask
from envs.play import play

FULL = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
PUZZLE = (1, 0, 3, 4, 3, 4, 0, 2, 0, 1, 4, 3, 4, 3, 2, 0)


def make(**options) -> SudokuEnv:
    env = SudokuEnv(SudokuOptions(**options))
    env.tasks = [SudokuTask(PUZZLE, FULL)]
    assert env.reset(seed=0)[0] == "1 _ 3 4\n3 4 _ 2\n_ 1 4 3\n4 3 2 _"
    return env


def answer(grid: str) -> str:
    return f"<think> </think> <answer> {grid} </answer>"


@pytest.mark.parametrize(
    ("action", "reward", "filled"),
    [
        (answer("1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"), 1.0, 1.0),
        (answer("1234 3412 2143 4321"), 1.0, 1.0),
        (answer("1234 3412 2143 4322"), 0.0, 0.75),
        # A right grid, but another one.
        (answer("3412 1234 2143 4321"), 0.0, 0.5),
        (answer("1 _ 3 4 3 4 _ 2 _ 1 4 3 4 3 2 _"), 0.0, 0.0),
        (answer("1234 3412 2143 432"), 0.0, 0.0),
        (answer("1234 3412 2143 43211"), 0.0, 0.0),
        (answer("1234, 3412, 2143, 4321"), 1.0, 1.0),
        (answer("1234 3412 2143 4321") * 2, 0.0, 0.0),
        ("1234 3412 2143 4321", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_rewards(action, reward, filled):
    last = make().step(action)
    assert (last.reward, last.terminated, last.observation) == (reward, True, "")
    assert last.info["scores"] == {"solved": reward, "filled": filled}


def test_with_more_turns_mistakes_are_reported():
    env = make(max_turns=5)
    for action, message in (
        ("", "There is not exactly one <answer> with its </answer>."),
        (answer("12"), "The answer is not 16 digits from 1 to 4."),
        (answer("2234 3412 2143 4321"), "Row 1, column 1 is 1."),
        (answer("1234 3412 2143 4322"), "Row 4 lacks 1."),
    ):
        step = env.step(action)
        assert (step.observation, step.reward, step.terminated) == (message, 0.0, False)
    assert env.step(answer("1234 3412 2143 4321")).reward == 1.0


@pytest.mark.parametrize("options", [{}, {"size": 9, "holes": 48}, {"split": "test", "holes": 10}])
def test_the_gold_policy_is_right(options):
    env = envs.make("sudoku", **options)
    for task in range(20):
        assert play(env, env.gold_policy(), task=task).reward == 1.0


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"size": 6}, r"size \(6\) must be 4 or 9"),
        ({"holes": 11}, r"holes \(11\) must be from 1 to 10"),
        ({"size": 9, "holes": 49}, r"holes \(49\) must be from 1 to 48"),
        ({"holes": 0}, r"holes \(0\) must be from 1 to 10"),
    ],
)
def test_options_out_of_range(option, says):
    with pytest.raises(ValueError, match=says):
        envs.make("sudoku", **option)


@pytest.mark.parametrize("options", [{}, {"size": 9, "holes": 40, "max_turns": 3}])
def test_it_keeps_the_contract(options):
    assert envs.check_env(envs.make("sudoku", **options)).env_id == "sudoku-v0"


def test_pictures_show_the_grid_and_mark_contradictions():
    puzzle = "1 _ 3 4\n3 4 _ 2\n_ 1 4 3\n4 3 2 _"
    right = "<answer> 1 2 3 4  3 4 1 2  2 1 4 3  4 3 2 1 </answer>"
    # The first row has two ones, and changes the given 3.
    wrong = "<answer> 1 1 2 4  3 4 1 2  2 1 4 3  4 3 2 1 </answer>"
    first, none, solved, bad = SudokuEnv.pictures(puzzle, ["<answer> 1 </answer>", right, wrong])
    assert [cell.text for cell in first.rows[0]] == ["1", "", "3", "4"]
    assert [cell.mark for cell in first.rows[0]] == ["given", "", "given", "given"]
    assert none is None
    assert not [cell for row in solved.rows for cell in row if cell.mark == "bad"]
    assert [cell.mark for cell in bad.rows[0]] == ["bad", "bad", "bad", "given"]
    assert SudokuEnv.pictures("no grid", []) == []

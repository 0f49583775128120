"""mastermind-v0: protocol, rewards of information, authors, options."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import envs
from envs import StopReason
from envs.logic.mastermind.env import MastermindEnv, MastermindOptions
from envs.logic.mastermind.scripted_policies import GoldPolicy, PatientPolicy
from envs.play import play


class OneCode:
    """A set of tasks with one secret code."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return self._code


def make(secret: str, **options) -> MastermindEnv:
    env = MastermindEnv(MastermindOptions(**options))
    env.tasks = OneCode(secret)
    env.reset(seed=0)
    return env


def test_a_game_word_for_word():
    env = make("314")
    assert env.reset(seed=0)[0] == "The code has 3 digits from 1 to 5. 10 guesses left."
    assert env.step("<guess> 122 </guess>").observation == "0 black, 1 white. 9 guesses left."
    assert env.step("<guess> 341 </guess>").observation == "1 black, 2 white. 8 guesses left."
    last = env.step("<guess> 314 </guess>")
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert last.info["scores"] == {"solved": 1.0, "information": 1.0}


def test_the_last_guess_ends_the_game():
    env = make("314", max_turns=2)
    assert env.step("<guess> 111 </guess>").observation == "1 black, 0 white. 1 guess left."
    last = env.step("<guess> 222 </guess>")
    assert (last.reward, last.terminated, last.truncated) == (0.0, False, True)
    assert last.info["stop_reason"] is StopReason.TURN_LIMIT


def test_what_cannot_be_read_costs_a_guess_and_three_in_a_row_end_the_game():
    env = make("314")
    for text in ("", "<guess> 999 </guess>"):
        step = env.step(text)
        assert step.observation.startswith("No guess could be read: write 3 digits from 1 to 5 ")
        assert step.info["rewards"] == {}
    assert env.step("<guess> 111 </guess>").observation == "1 black, 0 white. 7 guesses left."
    env.step("111")
    env.step("111")
    last = env.step("111")
    assert (last.reward, last.truncated) == (0.0, True)
    assert last.info["stop_reason"] is StopReason.INVALID_ACTIONS


def test_what_the_environment_says_is_no_guess():
    env = make("111")
    for text in (env.system_prompt, env.reset(seed=0)[0], env.step("").observation):
        assert env.step(text).observation.startswith("No guess could be read")
        env.reset(seed=0)


def test_information_is_paid_as_it_comes_and_adds_up():
    env = make("314", information_reward=0.5)
    steps = [env.step(f"<guess> {guess} </guess>") for guess in ("122", "122", "341", "314")]
    paid = [step.info["rewards"]["information"] for step in steps]
    # A repeated guess has no information.
    assert paid[1] == 0.0
    assert all(one > 0 for one in (paid[0], paid[2]))
    assert sum(paid) == pytest.approx(0.5)
    assert sum(step.reward for step in steps) == pytest.approx(1.5)
    # 1 white for 122: a 1 that is not in the first place and no 2, or a 2 in the first and no 1.
    left = [
        code
        for code in env._game.codes
        if (code[0] != "1" and code.count("1") >= 1 and "2" not in code)
        or (code[0] == "2" and "1" not in code and code.count("2") == 1)
    ]
    assert paid[0] == pytest.approx(0.5 * math.log(125 / len(left)) / math.log(125))


def test_without_the_option_information_is_only_a_score():
    env = make("314")
    step = env.step("<guess> 122 </guess>")
    assert step.info["rewards"] == {"solved": 0.0}
    assert 0 < step.info["scores"]["information"] < 1


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 5), ({"pegs": 4, "colours": 6, "repeats": False, "max_turns": 10}, 6)],
)
def test_the_gold_policy_finds_every_code(options, most):
    env = MastermindEnv(MastermindOptions(**options))
    turns = Counter()
    for code in env._game.codes:
        env.tasks = OneCode(code)
        played = play(env, env.gold_policy())
        assert played.reward == 1.0
        turns[len(played.steps)] += 1
    assert max(turns) <= most


def test_the_gold_author_does_not_repeat_what_it_knows():
    author = GoldPolicy()
    first = author("The code has 3 digits from 1 to 5. 10 guesses left.")
    second = author("0 black, 0 white. 5 guesses left.")
    digits = set(first) & set("12345")
    assert digits and not digits & set(second)
    with pytest.raises(ValueError, match="'Hello' neither starts a game"):
        author("Hello")


def test_the_patient_author_changes_one_digit_after_another():
    author = PatientPolicy(np.random.default_rng(0), overlooks=0.0)
    said = {
        "The code has 3 digits from 1 to 5. 10 guesses left.": "111",
        "1 black, 0 white. 9 guesses left.": "211",
        "2 black, 0 white. 8 guesses left.": "221",  # more: 2 stays, and the next place follows
        "2 black, 0 white. 7 guesses left. ": "231",  # neither
        "1 black, 1 white. 6 guesses left.": "212",  # fewer: 1 was right
        "2 black, 0 white. 5 guesses left.": "213",
        "2 black, 0 white. 4 guesses left.": "214",
        "2 black, 0 white. 3 guesses left.": "215",
        "2 black, 0 white. 2 guesses left.": "111",  # overlooked something: begins again
    }
    for observation, guess in said.items():
        assert author(observation) == f"<guess> {guess} </guess>"


def solved(overlooks: float, turns: int) -> float:
    env, rng = envs.make("mastermind", max_turns=turns), np.random.default_rng(0)
    return float(
        np.mean([play(env, PatientPolicy(rng, overlooks), task=t).reward for t in range(200)])
    )


def test_who_overlooks_finds_fewer_codes():
    # The first guess, and four for each of three digits.
    assert solved(0.0, 13) == 1.0
    assert solved(0.0, 10) == pytest.approx(0.91, abs=0.06)
    assert solved(1.0, 13) == pytest.approx(13 / 125, abs=0.06)


def test_demonstrations_leave_something_to_learn():
    env, rng = envs.make("mastermind"), np.random.default_rng(1)
    found = [play(env, env.demonstrator(rng), task=task).reward for task in range(300)]
    assert 0.3 <= np.mean(found) <= 0.5


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"pegs": 7}, r"pegs \(7\) must be from 2 to 6"),
        ({"colours": 10}, r"colours \(10\) must be from 2 to 9"),
        ({"pegs": 2, "colours": 5}, r"pegs \(2\) and colours \(5\) make 25 codes"),
        ({"pegs": 6, "colours": 9}, r"make 531441 codes: there must be from 100 to 10000"),
        ({"information_reward": -1.0}, r"information_reward \(-1.0\) must be >= 0"),
    ],
)
def test_options_out_of_range(option, says):
    with pytest.raises(ValueError, match=says):
        envs.make("mastermind", **option)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pegs": 4, "colours": 6, "max_turns": 10, "information_reward": 0.5},
        {"pegs": 4, "colours": 7, "repeats": False, "max_turns": 10, "split": "test"},
    ],
)
def test_it_keeps_the_contract(options):
    assert envs.check_env(envs.make("mastermind", **options)).env_id == "mastermind-v0"

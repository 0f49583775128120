"""knights-knaves-v0: its protocol, its authors, its options."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.logic.knights.scripted_policies import GoldPolicy, HastyPolicy
from envs.play import play

PUZZLE = "Zoey says: Zoey is a knight and Oliver is a knight.\nOliver says: Zoey is a knave."


def test_the_gold_author_word_for_word():
    assert GoldPolicy()(PUZZLE) == (
        "<think> </think> <answer> (1) Zoey is a knave (2) Oliver is a knight </answer>"
    )


def test_the_hasty_author_word_for_word():
    seeing = HastyPolicy(np.random.default_rng(0), overlooks=0.0)
    assert seeing(PUZZLE) == (
        "<think> Zoey knight knight Zoey knight true true and "
        "Zoey knight knight Oliver knight true true fits "
        "Oliver knight knight Zoey knave false false not "
        "Zoey knave knight Zoey knight false false and "
        "Zoey knave knight Oliver knight true false fits "
        "Oliver knave knight Zoey knave true true fits </think> "
        "<answer> (1) Zoey is a knave (2) Oliver is a knight </answer>"
    )
    blind = HastyPolicy(np.random.default_rng(0), overlooks=1.0)
    assert blind(PUZZLE) == (
        "<think> Zoey knight knight Zoey knight true true and "
        "Zoey knight knight Oliver knight true true fits "
        "Oliver knight knight Zoey knave false false fits </think> "
        "<answer> (1) Zoey is a knight (2) Oliver is a knight </answer>"
    )


@pytest.mark.parametrize("people", [2, 3, 5, 8])
@pytest.mark.parametrize("depth", [2, 4])
def test_the_hasty_author_is_right_unless_it_overlooks(people, depth):
    env = envs.make("knights-knaves", people=people, depth=depth)
    seeing = HastyPolicy(np.random.default_rng(0), overlooks=0.0)
    assert all(play(env, seeing, task=task).reward == 3.0 for task in range(12))


@pytest.mark.parametrize("people", [2, 3, 5, 8])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_policy_is_right(people, split):
    env = envs.make("knights-knaves", people=people, split=split, seed=3)
    for task in range(12):
        played = play(env, env.gold_policy(), task=task)
        assert played.reward == 3.0 and played.steps[-1].terminated
        assert played.steps[-1].info["scores"] == {"solved": 1.0, "format": 1.0}


def test_demonstrations_leave_something_to_learn():
    env, rng = envs.make("knights-knaves"), np.random.default_rng(1)
    played = [play(env, env.demonstrator(rng), task=task) for task in range(400)]
    scores = [one.steps[-1].info["scores"] for one in played]
    assert {score["format"] for score in scores} == {1.0}
    assert 0.4 <= np.mean([score["solved"] for score in scores]) <= 0.6


def test_an_answer_ends_the_episode_and_its_parts_are_scored():
    env = envs.make("knights-knaves", people=2)
    env.reset(seed=0)
    step = env.step("<think> </think> <answer> </answer>")
    assert (step.terminated, step.reward) == (True, env.reward_floor)
    assert step.info["rewards"] == {"format": 1.0, "answer": -2.0}
    assert step.info["scores"] == {"solved": 0.0, "format": 1.0}


def test_repeating_the_rules_earns_no_more_than_the_floor():
    env = envs.make("knights-knaves")
    assert env.system_prompt is not None
    question, _ = env.reset(seed=0)
    assert env.step(f"{env.system_prompt}\n{question}").reward <= env.reward_floor
    assert envs.make("knights-knaves", instructions=False).system_prompt is None


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"people": 1}, r"people \(1\) must be from 2 to 8"),
        ({"people": 9}, r"people \(9\) must be from 2 to 8"),
        ({"depth": 1}, r"depth \(1\) must be from 2 to 4"),
        ({"depth": 5}, r"depth \(5\) must be from 2 to 4"),
        ({"max_turns": 2}, r"max_turns \(2\) must be 1"),
    ],
)
def test_options_out_of_range(option, says):
    with pytest.raises(ValueError, match=says):
        envs.make("knights-knaves", **option)


@pytest.mark.parametrize("options", [{}, {"people": 8, "depth": 4}, {"people": 2, "split": "test"}])
def test_it_keeps_the_contract(options):
    assert envs.check_env(envs.make("knights-knaves", **options)).env_id == "knights-knaves-v0"

"""A step whose rewards gave no gradient is named, with the cause and what to try."""

from __future__ import annotations

import pytest

from rl.run.metrics.no_gradient import REASONS, REMEDIES, cause_of, causes_in, no_gradient_of

TIED = {
    "num_groups": 4.0,
    "num_groups_dropped": 0.0,
    "grad_norm": 0.0,
    "frac_zero_advantage": 1.0,
    "frac_reward_zero_std": 1.0,
    "groups_of_one": 0.0,
    "completions/clipped_ratio": 0.0,
}


@pytest.mark.parametrize(
    ("changed", "successes", "cause"),
    [
        ({"grad_norm": 0.5, "frac_zero_advantage": 0.2, "frac_reward_zero_std": 0.2}, [0, 1], None),
        ({}, [], "failed"),
        ({"groups_of_one": 4.0}, [0, 1], "one_episode"),
        ({"completions/clipped_ratio": 0.95}, [0, 0], "cut"),
        ({"completions/clipped_ratio": 0.5}, [0, 0], "none_succeeded"),
        ({}, [1, 1], "all_succeeded"),
        ({}, [0, 1], "equal"),
        # Of four tasks one was dropped, and each of the others had one episode.
        ({"groups_of_one": 3.0, "num_groups_dropped": 1.0}, [0, 1], "one_episode"),
        # Rewards differed within half of the tasks, and gave no advantage.
        ({"frac_reward_zero_std": 0.5}, [0, 1], "other"),
        # The divergence from a reference has a gradient; the rewards have none.
        ({"grad_norm": 0.5}, [0, 1], "equal"),
        # All tokens clipped or masked.
        ({"frac_zero_advantage": 0.2, "frac_reward_zero_std": 0.2}, [0, 1], "other"),
        # float32 noise, not a gradient.
        ({"frac_zero_advantage": 0.9, "grad_norm": 1e-13}, [0, 1], "other"),
    ],
)
def test_the_cause_of_a_step_without_a_gradient(changed, successes, cause):
    assert cause_of(TIED | changed, successes) == cause


def test_an_update_that_was_skipped_had_no_gradient():
    skipped = {"num_groups": 4.0, "num_groups_dropped": 0.0, "num_tokens": 0.0}
    assert cause_of(skipped, [0.0]) == "none_succeeded"


def test_every_cause_has_a_reason_and_a_remedy():
    assert REASONS.keys() == REMEDIES.keys()


@pytest.mark.parametrize(
    ("causes", "which"),
    [
        ([None, "cut", "cut"], "the last 2 of 3 steps"),
        (["cut", "cut"], "the last 2 of 2 steps"),
        (["cut", None], "1 of 2 steps"),
        (["equal", None, "cut"], "2 of 3 steps, the last 1 among them"),
    ],
)
def test_the_steps_are_counted(causes, which):
    assert str(no_gradient_of(causes)).startswith(f"no gradient from rewards in {which}: ")


def test_causes_and_remedies_are_listed_by_frequency():
    no_gradient = no_gradient_of(["equal", "cut", "cut"])
    assert no_gradient.to_json() == {
        "steps_without_gradient": 3,
        "last_steps_without_gradient": 3,
        "no_gradient_causes": {"cut": 2, "equal": 1},
        "what_to_try": f"{REMEDIES['cut']}; {REMEDIES['equal']}",
    }
    assert f"{REASONS['cut']} (2); {REASONS['equal']} (1). What to try: " in str(no_gradient)


def test_a_run_whose_every_step_had_a_gradient_says_nothing():
    no_gradient = no_gradient_of(
        causes_in([{"num_groups": 1.0, "reward": 0.5}, {"eval/success": 0.5}])
    )
    assert str(no_gradient) == ""
    assert no_gradient.steps == 1

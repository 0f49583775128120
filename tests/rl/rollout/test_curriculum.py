"""Curricula: proportions, orders, pools, and states that go on with the same tasks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.rollout.curriculum import (
    Curriculum,
    CurriculumConfig,
    EasyToHard,
    Prioritized,
    make_curriculum,
)
from rl.rollout.task_order import TaskOrder


def after_outcomes(curriculum, rates, episodes=10):
    for task, rate in rates.items():
        right = round(rate * episodes)
        curriculum.learn(task, [1.0] * right + [0.0] * (episodes - right))
    return curriculum


def test_prioritized_weights_are_one_minus_the_success_rate():
    curriculum = after_outcomes(Prioritized(range(3), 0), {0: 0.9, 1: 0.5, 2: 0.1})
    weights = curriculum.weights()
    assert weights / weights.sum() == pytest.approx([0.0666667, 1 / 3, 0.6])
    curriculum.learn(0, [0.0] * 10)
    assert curriculum.weights()[0] == pytest.approx(0.55), "all its episodes count alike"
    assert after_outcomes(Prioritized([7, 5], 0), {5: 0.5}).weights() == pytest.approx([1.0, 0.5])


def test_prioritized_draws_follow_the_weights():
    curriculum = after_outcomes(Prioritized(range(3), 0), {0: 0.9, 1: 0.5, 2: 0.1})
    drawn = Counter(curriculum.take(1)[0] for _ in range(6000))
    shares = [drawn[task] / 6000 for task in range(3)]
    # Four standard errors of the middle share.
    assert shares == pytest.approx([0.0666667, 1 / 3, 0.6], abs=0.025)


def test_tasks_that_never_fail_fill_up_a_draw_and_none_comes_twice_in_it():
    curriculum = after_outcomes(Prioritized(range(10), 3), dict.fromkeys(range(6), 1.0))
    for _ in range(20):
        taken = curriculum.take(6)
        assert len(set(taken)) == 6
        assert {6, 7, 8, 9} <= set(taken)
    everything_solved = after_outcomes(Prioritized(range(4), 3), dict.fromkeys(range(4), 1.0))
    assert sorted(everything_solved.take(4)) == [0, 1, 2, 3]
    assert Counter(Prioritized(range(3), 0).take(7)).most_common(1)[0][1] == 3


def test_easy_to_hard_sorts_the_ramp_and_goes_on_uniformly():
    uniform = TaskOrder(100, 5).take(0, 60)
    curriculum = EasyToHard(range(100), 5, 40, lambda task: task % 4 / 3)
    taken = curriculum.take(16) + curriculum.take(16) + curriculum.take(28)
    assert [task % 4 for task in taken[:40]] == sorted(task % 4 for task in uniform[:40])
    assert [t for t in taken[:40] if t % 4 == 2] == [t for t in uniform[:40] if t % 4 == 2]
    assert taken[40:] == uniform[40:]


def test_a_ramp_keeps_its_length_when_a_run_goes_on_for_longer():
    short = EasyToHard(range(100), 5, 40, float)
    short.take(30)
    longer = EasyToHard(range(100), 5, 80, float)
    longer.load_state_dict(short.state_dict())
    assert longer.take(30) == short.take(30)


def make(config, num_tasks=50, difficulty=float):
    return make_curriculum(config, num_tasks, 3, 40, difficulty)


@settings(max_examples=40, deadline=None, database=None)
@given(
    st.sampled_from(["uniform", "easy-to-hard", "prioritized"]),
    st.sampled_from([0, 20, 500]),
    st.lists(st.integers(1, 9), max_size=6),
    st.integers(1, 20),
)
def test_a_restored_curriculum_takes_the_same_tasks(order, pool, before, after):
    config = CurriculumConfig(order=order, pool=pool)
    first, second = make(config), make(config)
    rng = np.random.default_rng(len(before))
    for count in before:
        for task in first.take(count):
            first.learn(task, rng.integers(0, 2, 4).astype(float).tolist())
    state = first.state_dict()
    expected = [first.take(after), first.take(after)]
    for task in expected[0]:
        first.learn(task, [1.0])
    second.load_state_dict(state)
    assert [second.take(after), second.take(after)] == expected


def test_a_pool_is_drawn_once_and_everything_comes_from_it():
    for order in ("uniform", "easy-to-hard", "prioritized"):
        curriculum = make(CurriculumConfig(order=order, pool=8))
        taken = set(curriculum.take(8) + curriculum.take(8) + curriculum.take(30))
        assert taken == set(TaskOrder(50, 3).take(0, 8)), order


def test_uniform_is_the_order_of_old():
    curriculum = make(CurriculumConfig())
    assert type(curriculum) is Curriculum
    assert curriculum.take(30) + curriculum.take(40) == TaskOrder(50, 3).take(0, 70)


def test_tasks_that_cannot_be_sorted_are_reported():
    def silent(task):
        raise NotImplementedError

    config = CurriculumConfig(order="easy-to-hard")
    with pytest.raises(ValueError, match=r"does not say how hard its tasks are: write its diff"):
        make(config, difficulty=silent)
    with pytest.raises(ValueError, match=r"all tasks are equally hard: mix some"):
        make(config, difficulty=lambda task: 0.5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"pool": -1}, r"pool \(-1\) must be >= 0"),
        ({"max_draws": 0}, r"max_draws \(0\) must be >= 1"),
        ({"ramp_steps": 3}, r"ramp_steps \(3\) is for order=easy-to-hard: order is uniform"),
    ],
)
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**setting)

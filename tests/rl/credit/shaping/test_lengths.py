"""Length rewards: the papers' values, their codes' values, and the ends of their ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.credit.shaping.lengths import cosine, kimi_length, l1_exact, l1_max, l1_max_code, overlong

LENGTHS = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("lengths", "right", "rewards"),
    [
        ([100, 200, 300, 500], [1, 0, 1, 0], [0.5, 0.0, 0.0, -0.5]),
        ([100, 200, 300], [0, 1, 1], [0.0, 0.0, -0.5]),
        ([7, 7, 7], [1, 0, 1], [0.0, 0.0, 0.0]),
        ([7], [1], [0.0]),
        ([0, 10], [0, 0], [0.0, -0.5]),
    ],
)
def test_kimi(lengths, right, rewards):
    assert kimi_length(lengths, [bool(r) for r in right]) == pytest.approx(rewards)


@pytest.mark.parametrize(
    ("length", "reward"),
    [
        (1000, 0.0),
        (16384, 0.0),
        (16385, -0.000244140625),
        (17408, -0.25),
        (18432, -0.5),
        (20480, -1.0),
        (20481, -1.0),
        (24576, -1.0),
        (0, 0.0),
    ],
)
def test_dapo_overlong(length, reward):
    assert overlong(length, 20480, 4096) == reward


@pytest.mark.parametrize(
    ("right", "budget", "length", "reward"),
    [(1, 1000, 1000, 1.0), (1, 1000, 1500, 0.85), (1, 2000, 500, 0.55), (0, 1000, 1200, -0.06)],
)
def test_l1_exact(right, budget, length, reward):
    assert right + l1_exact(length, budget) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("budget", "length", "reward"),
    [(1000, 1000, 0.5), (1000, 500, 0.65), (1000, 2000, 0.2), (1000, 3000, 0.0), (3000, 500, 1.0)],
)
def test_l1_max(budget, length, reward):
    assert l1_max(length, budget) == pytest.approx(reward)


def test_l1_max_in_its_authors_code_has_half_the_slope():
    used = (1000, 500, 2000, 3000)
    assert [l1_max_code(n, 1000) for n in used] == pytest.approx([0.5, 0.575, 0.35, 0.2])
    doubled = [l1_max_code(n, 1000, alpha=0.0006) for n in used]
    assert doubled == pytest.approx([0.5, 0.65, 0.2, 0.0]) == [l1_max(n, 1000) for n in used]
    assert (l1_max_code(99_999, 1000), l1_max_code(0, 99_999)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("start", "end", "values"),
    [
        (1.0, 0.5, {0: 1, 250: 0.9267767, 500: 0.75, 1000: 0.5, 1500: 0.75, 2000: 1}),
        (-1.0, -0.5, {0: -1, 250: -0.9267767, 500: -0.75, 1000: -0.5, 2000: -1}),
        (0.0, -0.5, {0: 0, 250: -0.0732233, 500: -0.25, 1000: -0.5, 2000: 0}),
    ],
)
def test_cosine_and_the_unclamped_original(start, end, values):
    for length, value in values.items():
        assert cosine(length, 1000, start, end, clamp=False) == pytest.approx(value)
        clamped = value if length <= 1000 else end
        assert cosine(length, 1000, start, end) == pytest.approx(clamped)


def test_cosine_of_experiment_3():
    assert cosine(1792, 3584, 1.0, 0.5) == pytest.approx(0.75)
    assert cosine(896, 3584, 1.0, 0.5) == pytest.approx(0.9267767)


@given(LENGTHS, LENGTHS, st.integers(1, 5000))
def test_longer_is_never_worth_more(one, other, budget):
    short, long = sorted((one, other))
    assert overlong(short, budget, budget) >= overlong(long, budget, budget)
    assert l1_max(short, budget) >= l1_max(long, budget)
    assert cosine(short, budget, 1.0, 0.5) >= cosine(long, budget, 1.0, 0.5) - 1e-12
    assert abs(budget - short) > abs(budget - long) or (
        l1_exact(short, budget) >= l1_exact(long, budget)
    )


@given(st.lists(st.tuples(LENGTHS, st.booleans()), min_size=1, max_size=9))
def test_kimi_stays_within_a_half_and_rewards_no_wrong_answer(members):
    lengths, right = zip(*members, strict=True)
    for reward, is_right in zip(kimi_length(lengths, right), right, strict=True):
        assert -0.5 <= reward <= (0.5 if is_right else 0.0)

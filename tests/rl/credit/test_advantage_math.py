"""Goldens: [CALC] rows of the papers' formulas, worked out with NumPy and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.advantages.math import gae, group_advantages, suffix_sums, whiten

NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def grouped(rewards, groups=None, **options):
    groups = [0] * len(rewards) if groups is None else groups
    return group_advantages(f64(rewards), torch.tensor(groups), **options)


@pytest.mark.parametrize(
    ("rewards", "std", "expected"),
    [
        ([1, 0, 0, 1], "unbiased", [0.866024, -0.866024, -0.866024, 0.866024]),
        ([1, 0, 0, 1], "biased", [0.999998, -0.999998, -0.999998, 0.999998]),
        ([1, 0, 0, 0], "unbiased", [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1, 0, 0, 0], "biased", [1.732047, -0.577349, -0.577349, -0.577349]),
        ([1, 0, 0, 0], "none", [0.75, -0.25, -0.25, -0.25]),
    ],
)
def test_outcome_advantages(rewards, std, expected):
    result = grouped(rewards, std=std)
    torch.testing.assert_close(result.advantages, f64(expected), atol=6e-7, rtol=0)


def test_over_the_mean_of_the_group():
    """MaxRL: (r - mean) / mean, so that the rarer success is, the more it weighs."""
    result = grouped([1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0] * 4 + [1] * 4 + [2] * 2, std="mean")
    expected = [3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1, 0, 0]
    torch.testing.assert_close(result.advantages, f64(expected), atol=2e-5, rtol=0)
    with pytest.raises(ValueError, match=r"rewards must be >= 0, one is -0.5"):
        grouped([1, -0.5], std="mean")


def test_groups_do_not_touch_each_other():
    result = grouped([1, 5, 0, 0, 5, 0, 1, 3], [7, 2, 7, 7, 2, 7, 7, 2], std="none")
    expected = [0.6, 2 / 3, -0.4, -0.4, 2 / 3, -0.4, 0.6, -4 / 3]
    torch.testing.assert_close(result.advantages, f64(expected))
    assert (result.num_groups, result.num_singletons, result.num_constant) == (2, 0, 0)


def test_a_group_of_one_gets_zero_and_is_counted():
    result = grouped([3, 1, 0], [0, 1, 1])
    assert result.advantages[0] == 0
    assert result.advantages[1] == pytest.approx(2**-0.5, abs=2e-6)
    assert result.num_singletons == 1


def test_failed_members_enter_no_baseline():
    result = grouped(
        [1, NAN, 0, 9], [0, 0, 0, 1], std="none", finished=torch.tensor([True, False, True, False])
    )
    assert result.advantages.tolist() == [0.5, 0, -0.5, 0]
    assert (result.num_groups, result.num_singletons) == (1, 0)


def test_equal_rewards_are_exactly_zero_and_counted():
    result = grouped([0.1, 0.1, 0.1, 0.7, 0.7], [0, 0, 0, 1, 1])
    assert result.advantages.tolist() == [0] * 5
    assert result.num_constant == 2


def test_no_episodes_are_no_groups():
    assert grouped([]).num_groups == 0


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        ("biased", [[1.443376, 2.309401, 1.443376], [-1.443376, -1.154701, 0]]),
        ("unbiased", [[1.290994, 2.065591, 1.290994], [-1.290994, -1.032796, 0]]),
    ],
)
def test_process_advantages(std, expected):
    """The turns of the group are normalised together, then summed from each token on."""
    turns = grouped([0.2, 0.8, 1.0, 0.4, 0.1], std=std).advantages
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    rows = torch.zeros(2, 3, dtype=torch.float64).masked_scatter(mask.bool(), turns)
    torch.testing.assert_close(suffix_sums(rows, mask), f64(expected), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1, 1, [0.8, 0.6, 0.5, 0.2]),
        (1, 0.95, [0.737225, 0.5655, 0.49, 0.2]),
        (1, 0, [0.2, 0.1, 0.3, 0.2]),
        (0.99, 0.95, [0.710015, 0.546534, 0.4801, 0.2]),
    ],
)
def test_gae(gamma, lam, expected):
    values = f64([[0.2, 0.4, 0.5, 0.8]])
    advantages, returns = gae(f64([[0, 0, 0, 1]]), values, torch.ones(1, 4), gamma, lam)
    torch.testing.assert_close(advantages, f64([expected]), atol=6e-7, rtol=0)
    torch.testing.assert_close(returns, f64([expected]) + values, atol=6e-7, rtol=0)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1, [1, 0.85, 0.7, 0, 0.25, 0.1, 0, 0.15]),
        (0.95, [0.902573, 0.792182, 0.675981, 0, 0.237875, 0.0925, 0, 0.15]),
    ],
)
@pytest.mark.parametrize("observed", [9.9, NAN])
def test_gae_steps_over_observations(lam, expected, observed):
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 0, 1]])
    rewards = f64([[0, 0, 0.3, observed, 0, -0.2, observed, 1]])
    values = f64([[0.10, 0.25, 0.40, observed, 0.55, 0.70, observed, 0.85]])
    advantages, _ = gae(rewards, values, mask, 1.0, lam)
    torch.testing.assert_close(advantages, f64([expected]), atol=6e-7, rtol=0)


def test_whitening_is_unbiased():
    x = f64([0.737225, 0.5655, 0.49, 0.2])
    expected = f64([1.066718, 0.300406, -0.036508, -1.330615])
    torch.testing.assert_close(whiten(x, torch.ones(4)), expected, atol=6e-7, rtol=0)


def test_whitening_reads_only_the_mask():
    x = f64([[0.737225, NAN, 0.5655, 0.49], [1e9, 0.2, NAN, NAN]])
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]])
    expected = f64([[1.066718, 0, 0.300406, -0.036508], [0, -1.330615, 0, 0]])
    torch.testing.assert_close(whiten(x, mask), expected, atol=6e-7, rtol=0)


def test_whitening_of_less_than_two_tokens():
    assert whiten(f64([5.0, 3.0]), torch.tensor([0, 1])).tolist() == [0, 0]
    assert whiten(f64([5.0]), torch.tensor([0])).tolist() == [0]


def loop_gae(rewards, values, mask, gamma, lam):
    """The recursion as it is written down, one token at a time."""
    advantages = np.zeros_like(rewards)
    for row in range(len(rewards)):
        next_value = carried = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                delta = rewards[row, t] + gamma * next_value - values[row, t]
                carried = delta + gamma * lam * carried
                advantages[row, t], next_value = carried, values[row, t]
    return advantages


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 21)),
    seed=st.integers(0, 2**31),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_gae_equals_the_loop(shape, seed, gamma, lam):
    generator = np.random.default_rng(seed)
    rewards, values = generator.normal(size=(2, *shape))
    mask = generator.random(shape) < 0.6
    rewards[~mask], values[~mask] = NAN, NAN
    advantages, returns = gae(
        torch.from_numpy(rewards), torch.from_numpy(values), torch.from_numpy(mask), gamma, lam
    )
    expected = loop_gae(rewards, values, mask, gamma, lam)
    np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(returns.numpy()[mask], (expected + values)[mask], atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), decay=st.floats(0, 1), gap=st.integers(0, 5))
def test_inserted_observations_change_nothing(seed, decay, gap):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 9, generator=generator, dtype=torch.float64)
    plain = suffix_sums(x, torch.ones(1, 9), decay)
    hole = torch.full((1, gap), NAN, dtype=torch.float64)
    spread = torch.cat([x[:, :4], hole, x[:, 4:], hole], 1)
    mask = ~spread.isnan()
    torch.testing.assert_close(suffix_sums(spread, mask, decay)[mask], plain[0], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("lam", "length", "mean"), [(1.0, 10, 1.0), (0.95, 10, 0.8025261), (0.95, 100, 0.1988159)]
)
def test_lambda_below_one_favours_short_successes_and_long_failures(lam, length, mean):
    """Concise Reasoning via RL, section 4: the mean of A over R, with values 0."""
    rewards = torch.zeros(1, length, dtype=torch.float64)
    rewards[0, -1] = -0.5
    mask = torch.ones(1, length)
    advantages, _ = gae(rewards, torch.zeros_like(rewards), mask, 1.0, lam)
    assert advantages.mean().item() == pytest.approx(-0.5 * mean, abs=1e-7)

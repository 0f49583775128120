"""Advantages as they reach the tokens of a batch of multi-turn episodes."""

import logging
from dataclasses import replace

import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.errors import RunFailure
from rl.rollout.trajectory import TrajectoryGroup

GRPO, PPO = ALGORITHMS["grpo"], ALGORITHMS["ppo"].changed({"whiten": False, "advantage.lam": 0.95})


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def test_outcomes_reach_every_token_of_the_episode(make_group):
    group = make_group([[(2, 2, 1.0), (1, 1, 0.0)], [(2, 1, 0.0)], [(2, 2, 0.0)], [(2, 1, 1.0)]])
    credit = assign_credit(GRPO, Batch.from_groups([group]))
    a = 0.866024
    expected = f64([a, a, a, -a, -a, -a, a])
    torch.testing.assert_close(credit.advantages, expected, atol=6e-7, rtol=0)
    assert credit.metrics == {"frac_reward_zero_std": 0.0, "groups_of_one": 0.0}


def test_failed_members_and_single_ones(make_group, make_trajectory, caplog):
    failed = make_trajectory([(2, 1, 5.0)], failure="sandbox died")
    pair = make_group([[(2, 1, 1.0)], [(2, 1, 0.0)]])
    pair.trajectories.append(failed)
    single = TrajectoryGroup([make_trajectory([(2, 2, 3.0)]), failed])
    with caplog.at_level(logging.WARNING):
        credit = assign_credit(
            GRPO.changed({"advantage.std": "none"}), Batch.from_groups([pair, single])
        )
    assert credit.advantages.tolist() == [0.5, -0.5, 0, 0]
    assert credit.metrics == {"frac_reward_zero_std": 0.5, "groups_of_one": 1.0}
    assert "1 of 2 groups have one finished episode" in caplog.text


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [("leave-one-out", [1, -1 / 3, -1 / 3, -1 / 3]), ("mean", [0.75, -0.25, -0.25, -0.25])],
)
def test_baselines_of_a_group(make_group, baseline, expected):
    group = make_group([[(2, 1, 1.0)], [(2, 1, 0.0)], [(2, 1, 0.0)], [(2, 1, 0.0)]])
    row = GRPO.changed({"advantage.std": "none", "advantage.baseline": baseline})
    credit = assign_credit(row, Batch.from_groups([group]))
    torch.testing.assert_close(credit.advantages, f64(expected))


def test_a_baseline_weighted_by_sampled_tokens(make_group):
    """Of 10 and 30 tokens with rewards 1 and 0 it is .25; observations have no weight."""
    group = make_group([[(2, 4, 0.0), (5, 6, 1.0)], [(2, 30, 0.0)]])
    credit = assign_credit(ALGORITHMS["opo"], Batch.from_groups([group]))
    torch.testing.assert_close(credit.advantages, f64([0.75] * 10 + [-0.25] * 30))


def test_reward_to_go_over_turns_then_whitened(make_group):
    group = make_group([[(2, 2, 0.5), (1, 1, 1.0)], [(2, 1, 0.0)]])
    row = ALGORITHMS["reinforce-pp"].changed({"advantage.gamma": 0.5})
    batch = Batch.from_groups([group])
    plain = f64([0.5 * (0.5 + 0.5 * 1.0), 0.5 + 0.5 * 1.0, 1.0, 0.0])
    credit = assign_credit(replace(row, whiten=False), batch)
    torch.testing.assert_close(credit.advantages, plain)
    whitened = assign_credit(row, batch).advantages
    torch.testing.assert_close(whitened, (plain - plain.mean()) / plain.std())


def test_process_rewards_of_turns(make_group):
    group = make_group([[(2, 2, 0.2), (1, 1, 0.8), (1, 1, 1.0)], [(2, 1, 0.4), (1, 2, 0.1)]])
    row = GRPO.changed({"advantage": "group-process", "advantage.std": "biased"})
    credit = assign_credit(row, Batch.from_groups([group]))
    first, second = [1.443376, 1.443376, 2.309401, 1.443376], [-1.443376, -1.154701, -1.154701]
    torch.testing.assert_close(credit.advantages, f64([*first, *second]), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1, [1, 0.85, 0.7, 0.25, 0.1, 0.15]),
        (0.95, [0.902573, 0.792182, 0.675981, 0.237875, 0.0925, 0.15]),
    ],
)
def test_gae_over_turns(make_group, lam, expected):
    """Turns of 3, 2 and 1 sampled tokens with rewards .3, -.2 and 1, beside another episode."""
    group = make_group([[(2, 3, 0.3), (1, 2, -0.2), (1, 1, 1.0)], [(2, 1, 0.0)]])
    values = f64([0.10, 0.25, 0.40, 0.55, 0.70, 0.85, 0.3])
    credit = assign_credit(PPO.changed({"advantage.lam": lam}), Batch.from_groups([group]), values)
    advantages = f64([*expected, -0.3])
    torch.testing.assert_close(credit.advantages, advantages, atol=6e-7, rtol=0)
    torch.testing.assert_close(credit.returns, advantages + values, atol=6e-7, rtol=0)


def anchored(make_group):
    """GiGPO: A answers s0, s1, s2 and earns 10 at last; B s0, s1, s3; C s0, s4, and earns 10."""
    group = make_group(
        [
            [(2, 1, 0.0), (1, 2, 0.0), (1, 1, 10.0)],
            [(2, 1, 0.0), (1, 1, 0.0), (1, 1, 0.0)],
            [(2, 3, 0.0), (1, 1, 10.0)],
        ]
    )
    observed = [["s1", "s2", "over"], ["s1", "s3", "over"], ["s4", "over"]]
    for trajectory, observations in zip(group.trajectories, observed, strict=True):
        for turn, observation in zip(trajectory.turns, observations, strict=True):
            turn.observation = observation
    return group


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        ("none", [6.183333, 8.083333, 3.333333, -12.841667, -11.416667, -6.666667]),
        ("unbiased", [1.109764, 1.284457, 0.57735, -2.308263, -1.861807, -1.1547]),
    ],
)
def test_groups_in_groups(make_group, std, expected):
    row = ALGORITHMS["gigpo"].changed({"advantage.std": std})
    # The same words in another group are another observation.
    batch = Batch.from_groups([anchored(make_group), anchored(make_group)])
    credit = assign_credit(row, batch)
    a0, a1, a2, b0, b1, b2 = expected
    c0 = {"none": 6.658333, "unbiased": 0.57735 + 0.621149}[std]
    c1 = {"none": 3.333333, "unbiased": 0.57735}[std]
    tokens = [a0, a1, a1, a2, b0, b1, b2, c0, c0, c0, c1]
    torch.testing.assert_close(credit.advantages, f64(tokens * 2), atol=3e-6, rtol=0)
    assert credit.metrics["frac_turns_alone"] == 3 / 8


VINE = replace(ALGORITHMS["vineppo"], whiten=False)


def valued(group, *values):
    """The values of each member's turns."""
    for trajectory, own in zip(group.trajectories, values, strict=True):
        for turn, value in zip(trajectory.turns, own, strict=True):
            turn.value = value
    return group


def test_values_by_trial(make_group):
    """VinePPO: V of .5, 5/9 and 8/9 and a reward of 1 at last; beside an episode that gains .25."""
    group = valued(
        make_group([[(2, 2, 0.0), (1, 1, 0.0), (1, 3, 1.0)], [(2, 1, 0.75)]]),
        [0.5, 5 / 9, 8 / 9],
        [0.5],
    )
    credit = assign_credit(VINE, Batch.from_groups([group]))
    expected = f64([0.0555556] * 2 + [0.3333333] + [0.1111111] * 3 + [0.25])
    torch.testing.assert_close(credit.advantages, expected, atol=1e-7, rtol=0)
    assert credit.returns is None
    assert credit.metrics["vine/value"] == pytest.approx((0.5 + 5 / 9 + 8 / 9 + 0.5) / 4)


def test_values_by_trial_are_discounted_by_turns(make_group):
    group = valued(make_group([[(2, 3, 0.5), (1, 2, 1.0)]]), [0.25, 0.8])
    credit = assign_credit(VINE.changed({"advantage.gamma_turn": 0.5}), Batch.from_groups([group]))
    torch.testing.assert_close(
        credit.advantages, f64([0.5 + 0.5 * 0.8 - 0.25] * 3 + [1.0 - 0.8] * 2)
    )


def test_values_by_trial_with_one_turn_are_a_baseline(make_group):
    group = valued(make_group([[(2, 3, 1.0)], [(2, 2, 0.0)]]), [0.25], [0.25])
    batch = Batch.from_groups([group])
    plain = assign_credit(VINE, batch).advantages
    torch.testing.assert_close(plain, f64([0.75] * 3 + [-0.25] * 2))
    whitened = assign_credit(ALGORITHMS["vineppo"], batch).advantages
    torch.testing.assert_close(whitened, (plain - plain.mean()) / plain.std())


def test_a_turn_without_a_token_counts_with_the_turn_before(make_group):
    group = make_group([[(2, 2, 0.0), (1, 1, 0.0), (1, 2, 1.0)]])
    group = valued(group, [0.5, None, 0.75])
    (trajectory,) = group.trajectories
    trajectory.turns[1].num_tokens = 0
    (segment,) = trajectory.segments
    sampled = [i for i, turn in enumerate(segment.turn_ids) if turn == 1 and segment.loss_mask[i]]
    segment.loss_mask[sampled[0]], segment.versions[sampled[0]] = 0, -1
    segment.sampling_logprobs[sampled[0]] = 0.0
    trajectory.turns[1].rewards = {"task": 0.25}
    credit = assign_credit(VINE, Batch.from_groups([group]))
    torch.testing.assert_close(credit.advantages, f64([0.25 + 0.75 - 0.5] * 2 + [0.25] * 2))


def test_a_turn_without_a_value_is_refused(make_group):
    group = valued(make_group([[(2, 2, 0.0), (1, 1, 1.0)]]), [0.5, None])
    with pytest.raises(ValueError, match=r"^1 of 2 turns have no value: advantage=vine needs"):
        assign_credit(VINE, Batch.from_groups([group]))


def test_one_turn_is_a_bandit(make_group):
    """With one turn the estimators of turns are those of episodes, token for token."""
    batch = Batch.from_groups([make_group([[(2, 3, 1.0)], [(2, 1, 0.0)], [(4, 2, 0.5)]])])
    outcome = assign_credit(GRPO, batch).advantages
    process = assign_credit(GRPO.changed({"advantage": "group-process"}), batch).advantages
    torch.testing.assert_close(process, outcome)
    row = replace(ALGORITHMS["reinforce-pp"], whiten=False)
    to_go = assign_credit(row, batch).advantages
    torch.testing.assert_close(to_go, f64([1.0] * 3 + [0.0] + [0.5] * 2))


def test_groups_in_groups_of_one_turn_are_twice_the_episode(make_group):
    batch = Batch.from_groups([make_group([[(2, 2, 1.0)], [(2, 1, 0.0)], [(2, 3, 0.0)]])])
    row = ALGORITHMS["gigpo"]
    credit = assign_credit(row, batch)
    single = assign_credit(
        row.changed({"advantage": "group-outcome", "advantage.std": "none"}), batch
    )
    torch.testing.assert_close(credit.advantages, 2 * single.advantages)
    without = assign_credit(row.changed({"advantage.turn_weight": 0.0}), batch)
    torch.testing.assert_close(without.advantages, single.advantages)


VAGEN = f64([0.10, 0.25, 0.40, 0.55, 0.70, 0.85])


@pytest.mark.parametrize(
    ("lam", "gamma_turn", "expected"),
    [
        (1, 0.95, [0.9125, 0.7625, 0.6125, 0.2, 0.05, 0.15]),
        (0.95, 0.95, [0.837334, 0.723510, 0.603695, 0.190731, 0.042875, 0.15]),
        (1, 1, [1, 0.85, 0.7, 0.25, 0.1, 0.15]),
    ],
)
def test_bilevel_gae(make_group, lam, gamma_turn, expected):
    """VAGEN's worked example: turns of 3, 2 and 1 sampled tokens, rewards .3, -.2 and 1."""
    group = make_group([[(2, 3, 0.3), (1, 2, -0.2), (1, 1, 1.0)], [(2, 1, 0.0)]])
    row = PPO.changed(
        {"advantage": "bilevel-gae", "advantage.lam": lam, "advantage.gamma_turn": gamma_turn}
    )
    values = torch.cat([VAGEN, f64([0.3])])
    credit = assign_credit(row, Batch.from_groups([group]), values)
    advantages = f64([*expected, -0.3])
    torch.testing.assert_close(credit.advantages, advantages, atol=6e-7, rtol=0)
    torch.testing.assert_close(credit.returns, advantages + values, atol=6e-7, rtol=0)


def test_bilevel_gae_does_not_lose_turns_without_reward(make_group):
    group = make_group([[(2, 3, 0.0), (1, 2, 0.0), (1, 1, 1.0)]])
    row = PPO.changed(
        {"advantage": "bilevel-gae", "advantage.lam": 1.0, "advantage.gamma_turn": 0.95}
    )
    credit = assign_credit(row, Batch.from_groups([group]), VAGEN)
    expected = f64([0.8025, 0.6525, 0.5025, 0.4, 0.25, 0.15])
    torch.testing.assert_close(credit.advantages, expected)


def test_a_divergence_in_the_reward_is_paid_at_its_token_by_bilevel_gae(make_group):
    """With every discount 1 it is token GAE; no token is charged for those before it."""
    groups = [make_group([[(2, 3, 0.3), (1, 2, -0.2), (1, 1, 1.0)], [(2, 2, 0.5), (1, 2, 0.0)]])]
    batch = Batch.from_groups(groups)
    generator = torch.Generator().manual_seed(0)
    old, ref, values = torch.randn(3, batch.num_tokens, generator=generator, dtype=torch.float64)
    row = PPO.changed(
        {"advantage.lam": 1.0, "kl.coef": 0.3, "kl.place": "reward", "kl.estimator": "k1"}
    )
    over_tokens = assign_credit(row, batch, values, old, ref)
    row = row.changed({"advantage": "bilevel-gae", "advantage.gamma_turn": 1.0})
    over_both = assign_credit(row, batch, values, old, ref)
    torch.testing.assert_close(over_both.advantages, over_tokens.advantages)
    torch.testing.assert_close(over_both.returns, over_tokens.returns)
    # The last token of all has nothing but its own to answer for.
    kl = 0.3 * (old - ref)
    expected = 1.0 - kl[5] - values[5]
    torch.testing.assert_close(over_both.advantages[5], expected)


def test_turn_gae(make_group):
    """Rewards 0 and 1, values .5 and .6 at the turns' first tokens: A2 .4, A1 .1 + .95 * .4."""
    group = make_group([[(2, 3, 0.0), (1, 2, 1.0)], [(2, 1, 1.0)]])
    row = PPO.changed({"advantage": "turn-gae", "advantage.lam": 0.95})
    values = f64([0.5, 9.0, 9.0, 0.6, 9.0, 0.2])
    credit = assign_credit(row, Batch.from_groups([group]), values)
    torch.testing.assert_close(credit.advantages, f64([0.48] * 3 + [0.4] * 2 + [0.8]))
    torch.testing.assert_close(credit.returns, f64([0.98] * 3 + [1.0] * 2 + [1.0]))


@pytest.mark.parametrize("advantage", ["turn-gae", "bilevel-gae"])
def test_with_one_turn_estimators_equal_their_parts(make_group, advantage):
    """Bi-level is token GAE; turn GAE is return minus the first token's value."""
    batch = Batch.from_groups([make_group([[(2, 4, 1.0)], [(3, 2, 0.5)]])])
    values = f64([0.2, 0.4, 0.5, 0.8, 0.1, 0.9])
    row = PPO.changed({"advantage": advantage, "advantage.gamma_turn": 0.9, "advantage.lam": 0.95})
    got = assign_credit(row, batch, values).advantages
    if advantage == "bilevel-gae":
        expected = assign_credit(PPO, batch, values).advantages
    else:
        expected = f64([0.8] * 4 + [0.4] * 2)
    torch.testing.assert_close(got, expected)


def test_lambda_that_grows_with_the_episode(make_group):
    """Alpha 0.5: of 4 tokens lambda is 0.5, of 1 it is 0 (not -1)."""
    batch = Batch.from_groups([make_group([[(2, 4, 1.0)], [(2, 1, 1.0)]])])
    values = f64([0.2, 0.4, 0.5, 0.8, 0.3])
    credit = assign_credit(PPO.changed({"advantage.lam_alpha": 0.5}), batch, values)
    alone = Batch.from_groups([make_group([[(2, 4, 1.0)]])])
    half = assign_credit(PPO.changed({"advantage.lam": 0.5}), alone, values[:4]).advantages
    torch.testing.assert_close(credit.advantages, torch.cat([half, f64([0.7])]))


def test_explained_variance(make_group):
    batch = Batch.from_groups([make_group([[(2, 1, 1.0)], [(2, 1, 3.0)], [(2, 1, 5.0)]])])
    for values, expected in (
        ([1, 3, 5], 1.0),
        ([0, 0, 0], 0.0),
        ([2, 3, 4], 0.75),
        ([5, 3, 1], -3),
    ):
        credit = assign_credit(PPO, batch, f64(values))
        assert credit.metrics["explained_variance"] == pytest.approx(expected, abs=1e-12)


def test_whitening_is_over_the_tokens_of_the_update(make_group):
    batch = Batch.from_groups([make_group([[(2, 4, 1.0)]])])
    row = replace(PPO, whiten=True)
    credit = assign_credit(row, batch, f64([0.2, 0.4, 0.5, 0.8]))
    expected = f64([1.066718, 0.300406, -0.036508, -1.330615])
    torch.testing.assert_close(credit.advantages, expected, atol=6e-7, rtol=0)


@pytest.mark.parametrize(
    ("beta", "per_token", "total"),
    [
        (0.2, [-0.044629, 0, 1.026706], 0.9820776),
        (0.02, [-0.004463, 0, 1.002671], 0.9982078),
    ],
)
def test_divergence_in_the_reward(make_group, beta, per_token, total):
    """InstructGPT: policy [.5, .6, .7], reference [.4, .6, .8], score 1 at the last token."""
    batch = Batch.from_groups([make_group([[(2, 3, 1.0)]])])
    old, ref = f64([0.5, 0.6, 0.7]).log(), f64([0.4, 0.6, 0.8]).log()
    row = PPO.changed({"kl.coef": beta, "advantage.lam": 1.0})
    credit = assign_credit(row, batch, torch.zeros(3, dtype=torch.float64), old, ref)
    rewards = credit.returns - torch.nn.functional.pad(credit.returns[1:], (0, 1))
    torch.testing.assert_close(rewards, f64(per_token), atol=6e-7, rtol=0)
    assert credit.returns[0].item() == pytest.approx(total, abs=6e-8)


def test_rewards_as_z_scores_of_the_batch(make_group):
    """Crossing the Reward Bridge: [.9, .8, .3, .1], whichever groups they are of."""
    groups = [
        make_group([[(2, 1, 0.9)], [(2, 2, 0.8)]]),
        make_group([[(2, 1, 0.3)], [(2, 1, 0.1)]]),
    ]
    credit = assign_credit(ALGORITHMS["reinforce"], Batch.from_groups(groups))
    expected = f64([1.121153, 0.822179, 0.822179, -0.672692, -1.270640])
    torch.testing.assert_close(credit.advantages, expected, atol=6e-6, rtol=0)
    equal = [make_group([[(2, 1, 0.5)], [(2, 2, 0.5)]])]
    assert not assign_credit(ALGORITHMS["reinforce"], Batch.from_groups(equal)).advantages.any()


def test_a_mean_of_negative_returns_ends_the_run_in_one_line(make_group):
    batch = Batch.from_groups([make_group([[(2, 1, 1.0)], [(2, 1, -0.5)]])])
    with pytest.raises(RunFailure, match=r"one earned -0.5: choose another algo.advantage.std"):
        assign_credit(ALGORITHMS["maxrl"], batch)

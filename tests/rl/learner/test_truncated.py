"""DAPO's overlong filtering: an episode that was cut for its length teaches nothing."""

from dataclasses import replace

import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater

ROW = ALGORITHMS["dapo-loss"].changed({"advantage.std": "none", "mask_truncated": True})


def cut(trajectory, reason):
    trajectory.terminated, trajectory.truncated, trajectory.stop_reason = False, True, reason


@pytest.fixture
def group(make_group):
    """Returns 1, 0 and .5; the last was cut, in the middle of its answer."""
    made = make_group([[(2, 2, 1.0)], [(2, 3, 0.0)], [(2, 4, 0.5)]])
    made.trajectories[2].turns[-1].finish_reason = "length"
    return made


@pytest.mark.parametrize("finish_reason", ["length", "context_full"])
def test_tokens_of_a_cut_episode_are_dropped_and_its_return_counts(group, finish_reason):
    group.trajectories[2].turns[-1].finish_reason = finish_reason
    batch = Batch.from_groups([group], mask_truncated=True)
    assert (batch.num_masked, batch.num_empty, batch.num_tokens) == (1, 0, 5)
    assert batch.rewards.tolist() == [1.0, 0.0, 0.5]
    advantages = assign_credit(ROW, batch).advantages
    assert advantages.tolist() == [0.5, 0.5, -0.5, -0.5, -0.5], "the mean is that of all three"
    assert Batch.from_groups([group]).num_tokens == 9


def episodes(make_group, *turns):
    """A group; an episode with the return 0 was cut."""
    group = make_group(turns)
    for trajectory in group.trajectories:
        if sum(reward for turn in trajectory.turns for reward in turn.rewards.values()) == 0:
            trajectory.turns[-1].finish_reason = "length"
    return group


def test_lengths_of_cut_episodes_count_in_an_optimal_baseline(make_group):
    """OPO weights returns by lengths: 10 of 200 tokens are those of the right answer."""
    group = episodes(make_group, [(2, 10, 1.0)], [(2, 90, 0.0)], [(2, 100, 0.0)])
    batch = Batch.from_groups([group], mask_truncated=True)
    row = ALGORITHMS["opo"].changed({"mask_truncated": True})
    assert assign_credit(row, batch).advantages.tolist() == pytest.approx([0.95] * 10)


@pytest.mark.parametrize("name", ["gigpo", "group-process"])
def test_turns_of_cut_episodes_count_where_turns_are_compared(make_group, name):
    """Masking changes no advantage of the others: those of the whole batch, by hand for GiGPO."""
    group = episodes(
        make_group,
        [(2, 1, 0.0), (2, 1, 1.0)],
        [(2, 1, 0.0), (2, 1, 0.5)],
        [(2, 1, 0.0), (2, 1, 0.0)],
        [(2, 1, 0.0), (2, 1, 0.0)],
    )
    row = ALGORITHMS["gigpo"].changed({"advantage.std": "none"})
    if name == "group-process":
        row = row.changed({"advantage": name})
    whole = assign_credit(row, Batch.from_groups([group])).advantages
    masked = Batch.from_groups([group], mask_truncated=True)
    found = assign_credit(replace(row, mask_truncated=True), masked).advantages
    assert (masked.num_tokens, found.tolist()) == (4, whole[:4].tolist())
    if name == "gigpo":
        # Centred returns .625 and .125, and centred returns to go, discounted by .95 per turn.
        first = [0.625 + 0.95 * 0.625, 0.125 + 0.95 * 0.125]
        last = [1.25, 0.25]
        assert found.tolist() == pytest.approx([first[0], last[0], first[1], last[1]])


def test_a_divergence_per_episode_counts_the_episodes_that_are_trained(make_model, group):
    def second_update(target):
        row = ROW.changed({"kl.coef": 0.2, "kl.target": target})
        learner = Updater(make_model(), row, OptimizerConfig(lr=1e-2))
        learner.update([group])
        before = learner.algorithm.kl.coef
        return learner.update([group]), learner.algorithm.kl.coef / before

    metrics, _ = second_update(1.0)
    total = metrics["kl"] * metrics["num_tokens"]
    assert total > 0
    # Two of three episodes are trained: 1.2 times the target each, and .8 if three shared it.
    _, change = second_update(total / 2 / 1.2)
    assert change > 1


@pytest.mark.parametrize(
    ("reason", "cut_for_length"),
    [
        ("token_limit", True),
        ("context_full", True),
        ("turn_limit", False),
        ("invalid_actions", False),
    ],
)
def test_running_out_of_turns_is_not_running_out_of_tokens(make_trajectory, reason, cut_for_length):
    trajectory = make_trajectory([(2, 2, 1.0)])
    assert not trajectory.cut_for_length
    cut(trajectory, reason)
    assert trajectory.cut_for_length == cut_for_length


def test_a_truncated_return_counts_in_the_baseline_of_the_others(make_model, group):
    def gradient(groups, row):
        learner = Updater(make_model(dtype=torch.float64), row, OptimizerConfig(max_grad_norm=1e9))
        seen = []
        learner.optimizer.step = lambda: seen.extend(
            p.grad.clone() for p in learner.model.parameters()
        )
        metrics = learner.update(groups)
        return seen, metrics

    got, metrics = gradient([group], ROW)
    assert metrics["masked_episodes"] == 1.0
    # Two episodes alone with returns .5 and -.5 have the advantages that three had.
    del group.trajectories[2]
    expected, _ = gradient([group], replace(ROW, mask_truncated=False))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)


def test_nothing_is_trained_if_all_episodes_were_cut(make_model, group):
    for trajectory in group.trajectories:
        cut(trajectory, "context_full")
    metrics = Updater(make_model(), ROW, OptimizerConfig()).update([group])
    assert (metrics["num_tokens"], metrics["skipped_updates"]) == (0.0, 1.0)

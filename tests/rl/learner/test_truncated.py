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

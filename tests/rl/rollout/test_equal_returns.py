"""Returns that differ by rounding alone are equal: there is nothing to learn from them."""

from __future__ import annotations

import pytest
import torch

from rl.credit.advantages.math import group_advantages
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn


def group(*episodes):
    """One finished trajectory for each sequence of turns' rewards."""
    made = []
    for rewards in episodes:
        turns = [Turn("", "", "stop_token", 0, {"r": reward}) for reward in rewards]
        made.append(Trajectory("test", {}, 0, 0, 0, [Segment()], turns, terminated=True))
    return TrajectoryGroup(made)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(
    ("episodes", "constant"),
    [
        (([0.1, 0.2], [0.3]), True),
        (([0.1, 0.2, -0.3], [0.0]), True),
        (([0.3], [0.3001]), False),
        (([0.0], [0.0]), True),
        (([1.0], [1.0 + 1e-6]), False),
    ],
)
def test_rounding_is_relative_to_the_largest_reward(episodes, constant, scale):
    scaled = [[scale * reward for reward in rewards] for rewards in episodes]
    assert group(*scaled).is_constant == constant


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_such_a_group_has_no_advantage(scale):
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.0, 1.0], dtype=torch.float64) * scale
    got = group_advantages(rewards, torch.tensor([0, 0, 0, 1, 1]))
    assert got.advantages[:3].tolist() == [0.0] * 3
    assert (got.num_groups, got.num_constant) == (2, 1)
    assert got.advantages[3] < 0 < got.advantages[4]


def test_a_role_that_not_every_member_has_is_compared_with_its_like_alone():
    def member(*roles):
        turns = [Turn("", "", "stop_token", 0, {"r": 0.5}, role=role) for role in roles]
        segments = [Segment(role=role) for role in roles]
        return Trajectory("test", {}, 0, 0, 0, segments, turns, terminated=True)

    assert TrajectoryGroup([member("a", "b"), member("a")]).is_constant
    assert not TrajectoryGroup([member("a", "b"), member("a"), member("a", "b", "b")]).is_constant

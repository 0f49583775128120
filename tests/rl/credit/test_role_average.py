"""SPIRAL's baselines by role: derived by hand, and kept from update to update."""

from __future__ import annotations

import pytest
import torch

from rl.credit.advantages import RoleAverage
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.learner.seam import NonFiniteLoss
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

ROW = ALGORITHMS["spiral"].changed({"advantage.alpha": 0.5})


def game(first, second, part=""):
    """An episode of two roles with one turn of two tokens each, and their returns."""
    segments, turns = [], []
    for number, (role, paid) in enumerate([("first", first), ("second", second)]):
        segment = Segment([3, 4, 5], [0, 1, 1], [0.0, -1.0, -1.0], [-1, 0, 0], [number] * 3)
        segment.role = role
        segments.append(segment)
        turns.append(Turn("", "", "stop_token", 2, {f"{role}/chips": paid}, role=role))
    made = Trajectory("duel-v0", {}, 0, 0, 0, segments, turns, terminated=True, part=part)
    return TrajectoryGroup([made])


def test_the_averages_and_advantages_by_hand():
    memory = {}
    batch = Batch.from_groups([game(1.0, -1.0), game(1.0, -1.0), game(-2.0, 2.0)])
    assert batch.roles == ("first", "second") * 3
    credit = assign_credit(ROW, batch, memory=memory)
    # first: b = 0.5, 0.75, -0.625 and A = 0.5, 0.25, -1.375. second: the opposite numbers.
    expected = [0.5, -0.5, 0.25, -0.25, -1.375, 1.375]
    assert credit.advantages.tolist() == [a for a in expected for _ in range(2)]
    assert memory == {"first": -0.625, "second": 0.625}
    assert credit.metrics == {"baseline/first": -0.625, "baseline/second": 0.625}
    # The next update goes on from there: b = -0.625 / 2 + 3 / 2 = 1.1875.
    credit = assign_credit(ROW, Batch.from_groups([game(3.0, 0.0)]), memory=memory)
    assert credit.advantages.tolist() == [1.8125] * 2 + [-0.3125] * 2


def test_the_papers_alpha_is_the_default():
    batch = Batch.from_groups([game(2.0, -2.0)])
    credit = assign_credit(ALGORITHMS["spiral"], batch)
    # b = 0.05 * 2, A = 2 - 0.1.
    assert credit.advantages.tolist() == pytest.approx([1.9, 1.9, -1.9, -1.9])


def test_each_game_of_a_mixture_has_averages_of_its_own():
    memory = {}
    assign_credit(ROW, Batch.from_groups([game(1.0, 0.0, "a"), game(4.0, 0.0, "b")]), memory=memory)
    assert memory == {"a/first": 0.5, "a/second": 0.0, "b/first": 2.0, "b/second": 0.0}


def test_a_constant_advantage_of_a_role_teaches_nothing_in_the_end():
    memory = {}
    for _ in range(60):
        credit = assign_credit(ROW, Batch.from_groups([game(1.0, -1.0)]), memory=memory)
    assert credit.advantages.abs().max() < 1e-9


@pytest.mark.parametrize("alpha", [-0.1, 1.0])
def test_alpha_is_a_weight(alpha):
    with pytest.raises(ValueError, match=r"alpha .* must be at least 0 and below 1"):
        RoleAverage(alpha=alpha)


def test_a_learner_keeps_the_averages_and_a_failed_update_does_not_change_them(make_model):
    updater = Updater(make_model(), ROW, OptimizerConfig(lr=1e-3, warmup_steps=0))
    updater.update([game(1.0, -1.0)])
    assert updater.memory == {"first": 0.5, "second": -0.5}
    other = Updater(make_model(), ROW, OptimizerConfig(lr=1e-3, warmup_steps=0))
    other.load_state_dict(updater.state_dict())
    assert other.memory == updater.memory
    broken = game(5.0, -5.0)
    with torch.no_grad():
        next(iter(other.model.model.parameters())).fill_(float("nan"))
    with pytest.raises(NonFiniteLoss):
        other.update([broken])
    assert other.memory == {"first": 0.5, "second": -0.5}
    old = {k: v for k, v in updater.state_dict().items() if k != "advantage_memory"}
    other.load_state_dict(old)
    assert other.memory == {}

"""Rewards that come before a role's first words, or for a role that never speaks.

The duel: a says two tokens, for which a earns 1 and b -1; b says three, and earns .5. b's return is
-.5, all of it earned by its first turn. Expected numbers are worked out by hand.
"""

import pytest
import torch

from agents.completion import Completion, FinishReason
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn
from rl.rollout.vine import return_to_go
from rl.run.metrics.episodes import rollout_metrics

V_OF_B = [0.1, 0.2, 0.3]


def play(*turns):
    """An episode of (role, sampled tokens, rewards) for each turn; every turn is worth .1."""
    segments: dict[str, Segment] = {}
    records = []
    for index, (role, count, rewards) in enumerate(turns):
        segment = segments.setdefault(role, Segment(role=role))
        segment.append_context([2, 3], index)
        completion = Completion((5,) * count, (-1.0,) * count, (0,) * count, FinishReason.LENGTH)
        segment.append_completion(completion, index)
        records.append(Turn("", "", "length", count, rewards, role=role, value=0.1))
    return Trajectory("test", {}, 0, 0, 0, [*segments.values()], records, terminated=True)


def duel():
    return play(("a", 2, {"a/win": 1.0, "b/win": -1.0}), ("b", 3, {"b/win": 0.5}))


def advantages(trajectories, algorithm, values=None, **choices):
    row = ALGORITHMS[algorithm].changed({"whiten": False, **choices})
    batch = Batch.from_groups([TrajectoryGroup(trajectories)])
    critic = None if values is None else torch.tensor(values, dtype=torch.float64)
    return assign_credit(row, batch, critic).advantages.tolist()


@pytest.mark.parametrize(
    ("algorithm", "of_b"),
    [
        ("turn-ppo", [-0.6, -0.6, -0.6]),  # The return of -.5 minus V at the first token.
        ("bilevel-ppo", [-0.6, -0.7, -0.8]),  # The return minus V of each token.
        ("ppo", [-0.6, -0.7, -0.8]),
        ("vineppo", [-0.6, -0.6, -0.6]),
        ("reinforce-pp", [-0.5, -0.5, -0.5]),
    ],
)
def test_rewards_before_a_roles_first_turn_belong_to_it_once(algorithm, of_b):
    values = [0.0, 0.0, *V_OF_B] if ALGORITHMS[algorithm].uses_values else None
    of_a = [0.9, 0.9] if algorithm == "vineppo" else [1.0, 1.0]
    assert advantages([duel()], algorithm, values) == pytest.approx([*of_a, *of_b])


@pytest.mark.parametrize(
    ("algorithm", "choices", "of_b"),
    [
        ("grpo", {"advantage.std": "none"}, 0.5),
        ("grpo", {"advantage.std": "none", "advantage": "group-process"}, 0.5),
        ("gigpo", {}, 1.0),  # Of the episode and of its only turn.
    ],
)
def test_groups_compare_returns_that_include_early_rewards(algorithm, choices, of_b):
    """The other member's b earns .5, its a 1 as well: b's returns are -.5 and .5, their mean 0."""
    other = play(("a", 1, {"a/win": 1.0}), ("b", 1, {"b/win": 0.5}))
    got = advantages([duel(), other], algorithm, **choices)
    assert got == pytest.approx([0.0] * 2 + [-of_b] * 3 + [0.0] + [of_b])


@pytest.mark.parametrize("algorithm", ["turn-ppo", "bilevel-ppo", "ppo", "reinforce-pp"])
def test_an_empty_first_completion_splits_no_turn(algorithm):
    """It is paid -1; then two tokens earn .5, and one 1: what is left is .5 .5 1."""
    episode = play(("", 0, {"x": -1.0}), ("", 2, {"x": 0.5}), ("", 1, {"x": 1.0}))
    batch = Batch.from_groups([TrajectoryGroup([episode])])
    assert batch.turn_ends.tolist() == [1, 2]
    assert batch.turn_rewards.tolist() == [-0.5, 1.0]
    values = V_OF_B if ALGORITHMS[algorithm].uses_values else None
    got = advantages([episode], algorithm, values, **({"advantage.lam": 1.0} if values else {}))
    expected = {
        "turn-ppo": [0.4, 0.4, 0.7],
        # The first turn's return is -.5 + .95 * 1.
        "bilevel-ppo": [0.35, 0.25, 0.7],
        "ppo": [0.4, 0.3, 0.7],
        "reinforce-pp": [0.5, 0.5, 1.0],
    }[algorithm]
    assert got == pytest.approx(expected)


def test_the_value_of_a_roles_first_turn_includes_earlier_rewards():
    """As its return does: what the policy cannot change any more is no advantage."""
    assert return_to_go(duel(), "b", 1, 0.5) == -0.5
    later = play(("b", 1, {"b/x": 4.0}), ("a", 1, {"b/x": 2.0}), ("b", 1, {"b/x": 1.0}))
    assert return_to_go(later, "b", 2, 0.5) == 1.0


def test_rewards_of_a_silent_role_do_not_reach_another_role():
    over = play(("a", 2, {"a/win": 1.0, "b/win": -1.0}))
    assert over.rewards_of("a") == [1.0]
    assert over.rewards_of("b") == [-1.0]
    batch = Batch.from_groups([TrajectoryGroup([over])])
    assert batch.rewards.tolist() == batch.turn_rewards.tolist() == [1.0]
    assert advantages([over], "reinforce-pp") == [1.0, 1.0]
    metrics = rollout_metrics([TrajectoryGroup([over, duel()])])
    assert metrics["roles/a/reward"] == 1.0
    assert metrics["roles/b/reward"] == (-1.0 - 0.5) / 2, "it is recorded"


def test_without_roles_a_name_with_a_slash_is_a_name():
    assert play(("", 1, {"format/tags": 0.25, "task": 1.0})).rewards_of("") == [1.25]

"""Dynamic sampling: constant groups make room for others, within a bound, and are counted."""

from __future__ import annotations

import asyncio

import pytest

from agents.segment import Segment
from rl.errors import UsageError
from rl.rollout.dynamic_sampling import drop_uninformative, fill, keep_widest
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.run.metrics.episodes import rollout_metrics
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig


def group(*rewards, failed=0):
    made = [
        Trajectory("toy", {}, 0, 0, i, turns=[Turn("", "", "stop_token", 0, {"a": reward})])
        for i, reward in enumerate(rewards)
    ]
    lost = [Trajectory("toy", {}, 0, 0, 9, failure="EnvFailure: gone") for _ in range(failed)]
    return TrajectoryGroup([*made, *lost])


def play(draws, count, max_draws):
    """Fill from these draws; returns the groups, and what was asked for."""
    asked = []

    async def draw(missing, number):
        asked.append((missing, number))
        groups = draws[number]
        assert len(groups) == missing
        return groups

    played = asyncio.run(fill(draw, count, max_draws))
    drop_uninformative(played, count, max_draws, keep=1)
    return played, asked


def test_a_group_is_constant_if_its_finished_members_cannot_be_compared():
    assert group(1, 1, 1).is_constant
    assert not group(1, 1, 0).is_constant
    assert group(1, failed=2).is_constant
    assert group(failed=2).is_constant
    assert not group(1, 0, failed=1).is_constant


def test_constant_groups_are_replaced_until_the_batch_is_full():
    draws = [
        [group(1, 0), group(1, 1), group(0, 0)],
        [group(1, 1), group(0, 1)],
        [group(1, 0)],
    ]
    played, asked = play(draws, 3, 5)
    assert asked == [(3, 0), (2, 1), (1, 2)]
    assert played == [one for draw in draws for one in draw], "all of them, in order"
    assert [g.dropped for g in played] == [False, True, True, True, False, False]
    metrics = rollout_metrics(played)
    assert (metrics["num_groups"], metrics["num_groups_dropped"]) == (6, 3)
    # What is reported is how the policy fared: the dropped groups' rewards count.
    assert metrics["reward"] == pytest.approx(7 / 12)


def test_the_bound_leaves_a_smaller_batch():
    played, asked = play([[group(1, 0), group(1, 1)], [group(0, 0)]], 2, 2)
    assert asked == [(2, 0), (1, 1)]
    assert [g.dropped for g in played] == [False, True, True]


def test_where_nothing_teaches_anything_the_first_draw_is_the_batch():
    played, _ = play([[group(1, 1), group(0, 0)], [group(1, 1), group(1, 1)]], 2, 2)
    assert [g.dropped for g in played] == [False, False, True, True]


def test_one_draw_is_taken_as_it_is():
    played, asked = play([[group(1, 1), group(1, 0)]], 2, 1)
    assert asked == [(2, 0)]
    assert [g.dropped for g in played] == [False, False]


@pytest.mark.parametrize(
    ("share", "dropped"),
    [
        (1.0, [False] * 4),
        (0.5, [True, False, False, True]),
        (0.3, [True, False, False, True]),
        (0.25, [True, False, True, True]),
    ],
)
def test_the_groups_whose_returns_differ_most_are_kept(share, dropped):
    """Their deviations are .4, .5, .471 and 0; a share of .3 is one group and a fifth."""
    groups = [group(1, 1, 1, 1, 0), group(1, 0), group(1, 0, 0), group(1, failed=1)]
    keep_widest(groups, share)
    assert [g.dropped for g in groups] == dropped


def game(*firsts):
    """A group of zero-sum games between ``a`` and ``b``, with the returns of ``a``."""
    made = [
        Trajectory(
            *("toy", {}, 0, 0, i),
            turns=[
                Turn("", "", "stop_token", 0, {"win": first}, role="a"),
                Turn("", "", "stop_token", 0, {"win": -first}, role="b"),
            ],
            segments=[Segment(role="a"), Segment(role="b")],
        )
        for i, first in enumerate(firsts)
    ]
    return TrajectoryGroup(made)


def test_each_role_is_compared_with_itself():
    """Over both roles, the returns of every zero-sum game add up to 0."""
    groups = [game(1, 1), game(1, -1), game(0.5, 0)]
    assert [g.is_constant for g in groups] == [True, False, False]
    keep_widest(groups, 0.3)
    assert [g.dropped for g in groups] == [True, False, True]


def test_what_was_dropped_before_takes_no_place():
    groups = [group(1, 0), group(1, 1, 0), group(1, 1, 1, 0)]
    groups[0].dropped = True
    keep_widest(groups, 0.5)
    assert [g.dropped for g in groups] == [True, False, True]


@pytest.mark.parametrize("setting", ["curriculum.max_draws=10", "curriculum.keep=0.25"])
@pytest.mark.parametrize("algo", ["spiral", "ppo", "reinforce-pp", "grpo"])
def test_groups_of_one_have_no_returns_to_compare(setting, algo):
    words = ["env=toy-copy", f"algo={algo}", setting]
    key, _, value = setting.partition("=")
    with pytest.raises(UsageError, match=rf"{key} \({value}\) must be 1 with group_size=1: it"):
        parse(TrainConfig, [*words, "group_size=1"], command="x", presets={})
    assert parse(TrainConfig, [*words, "group_size=2"], command="x", presets={}).group_size == 2


@pytest.mark.parametrize("algo", ["grpo", "dr-grpo", "rloo"])
def test_a_group_of_one_is_refused_where_members_are_compared(algo):
    """Each step would play for minutes and learn nothing."""
    words = ["env=toy-copy", f"algo={algo}"]
    with pytest.raises(UsageError, match=rf"group_size \(1\) must be above 1 with algo={algo}"):
        parse(TrainConfig, [*words, "group_size=1"], command="x", presets={})
    imitates = [*words, "group_size=1", "algo.ptx_coef=1"]
    assert parse(TrainConfig, imitates, command="x", presets={}).group_size == 1


@pytest.mark.parametrize("algo", ["reinforce", "ppo", "spiral", "reinforce-pp"])
def test_a_group_of_one_is_accepted_where_none_are_compared(algo):
    words = ["env=toy-copy", f"algo={algo}", "group_size=1"]
    assert parse(TrainConfig, words, command="x", presets={}).group_size == 1

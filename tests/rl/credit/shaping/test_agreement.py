"""Agreement of a judge with outcomes: by hand, and what an order alone decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.credit.shaping import Shaping, Weighted
from rl.credit.shaping.agreement import agreement_metrics, pair_agreement, rank_correlation
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn

numbers = st.integers(-4, 4)


def array(*values):
    return np.array(values, dtype=np.float64)


def test_pairs_are_siblings_of_different_outcomes():
    judged = [array(3, 1, 2), array(0, 5), array(9)]
    outcomes = [array(1, 0, 0), array(1, 0), array(1)]
    # Two right and one wrong; the third group has no pair.
    assert pair_agreement(judged, outcomes) == pytest.approx(2 / 3)
    assert pair_agreement([array(1, 1)], [array(0, 1)]) == 0.5, "a tie is half"
    assert pair_agreement([array(1, 2)], [array(1, 1)]) is None
    assert pair_agreement([], []) is None


def test_ranks_of_ties_are_their_mean():
    # Ranks 1, 2.5, 2.5, 4 and 2, 1, 3, 4, from their mean 2.5: products 3, squares 4.5 and 5.
    found = rank_correlation(array(-3, 7, 7, 100), array(2, 1, 3, 4))
    assert found == pytest.approx(3 / (4.5 * 5) ** 0.5)
    assert rank_correlation(array(1, 2, 3), array(9, 5, 1)) == pytest.approx(-1)
    assert rank_correlation(array(1, 1), array(1, 2)) is None
    assert rank_correlation(array(), array()) is None


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12))
def test_only_the_order_of_judgements_counts(rows):
    judged, outcomes = array(*(a for a, _ in rows)), array(*(b for _, b in rows))
    pairs, ranks = pair_agreement([judged], [outcomes]), rank_correlation(judged, outcomes)
    assert pair_agreement([np.exp(judged)], [outcomes]) == pairs
    assert rank_correlation(np.exp(judged), outcomes) == pytest.approx(ranks)
    if pairs is not None:
        assert pair_agreement([-judged], [outcomes]) == pytest.approx(1 - pairs)
    if ranks is not None:
        assert rank_correlation(-judged, outcomes) == pytest.approx(-ranks)


def episode(judged, right, failure=None):
    turn = Turn("a", "", "stop_token", 0, {"own": 5.0}, {"right": right})
    return Trajectory("x", {}, 0, 0, 0, turns=[turn], shaping={"rm": judged}, failure=failure)


def test_metrics_cover_judging_shapings_and_finished_episodes():
    failed = episode(0.0, 1.0, failure="away")
    groups = [
        TrajectoryGroup([episode(2.0, 1.0), failed, episode(1.0, 0.0)]),
        TrajectoryGroup([episode(0.5, 1.0), episode(3.0, 0.0)]),
        TrajectoryGroup([failed]),
    ]
    judge = Weighted(1.0, Shaping("rm", lambda members: [], judges=True))
    other = Weighted(1.0, Shaping("rm2", lambda members: []))
    metrics = agreement_metrics((judge, other), groups, "right")
    assert sorted(metrics) == ["agreement/rm/pairs", "agreement/rm/ranks"]
    assert metrics["agreement/rm/pairs"] == 0.5
    # Ranks 3, 2, 1, 4 against 3.5, 1.5, 3.5, 1.5.
    assert metrics["agreement/rm/ranks"] == pytest.approx(-2 / (5 * 4) ** 0.5)
    assert agreement_metrics((judge,), groups, "") == {}, "all returns are equal"
    assert agreement_metrics((judge,), [TrajectoryGroup([failed])], "right") == {}

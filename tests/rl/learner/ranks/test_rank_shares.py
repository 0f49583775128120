"""Shares of the work: every item counts once, and all ranks compute equally many."""

import itertools
import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rl.learner.ranks.world import SOLO, World

COSTS = st.lists(st.integers(1, 50), max_size=20)
SIZES = st.integers(1, 5)


def world(rank, size):
    made = World()
    made.rank, made.size = rank, size
    return made


@given(COSTS, SIZES)
def test_each_item_counts_once_and_all_ranks_have_equally_many(costs, size):
    items = list(enumerate(costs))
    shares = [world(rank, size).share(items, lambda item: item[1]) for rank in range(size)]
    assert {len(share) for share in shares} == {math.ceil(len(items) / size)}
    counted = Counter(item for share in shares for item, counts in share if counts)
    assert counted == Counter(items)


@given(COSTS, st.integers(2, 5))
def test_a_round_has_items_of_similar_cost(costs, size):
    """No item of a round is cheaper than an item of a later round."""
    shares = [world(rank, size).share(costs, lambda cost: cost) for rank in range(size)]
    rounds = list(zip(*shares, strict=True))
    for before, after in itertools.pairwise(rounds):
        assert min(x for x, _ in before) >= max(x for x, counts in after if counts)


def test_one_process_keeps_the_order():
    assert SOLO.share([3, 1, 2], lambda x: x) == [(3, True), (1, True), (2, True)]


def cut(total):
    """Cuts ``total`` tokens into items of at most ``limit``."""
    return lambda limit: [min(limit, total - start) for start in range(0, total, limit)]


def test_work_for_one_item_is_cut_for_all_ranks():
    assert SOLO.divided(cut(100), 4096, int) == [100]
    assert world(0, 4).divided(cut(100), 4096, int) == [25] * 4


def test_an_item_in_a_round_of_its_own_is_avoided():
    """Three items for two ranks take two rounds, of 40 and 20; four take 25 each."""
    assert world(0, 2).divided(cut(100), 40, int) == [25] * 4


@given(st.integers(1, 500), st.integers(1, 60), SIZES)
def test_cuts_stay_within_the_limit_and_lose_nothing(total, limit, size):
    items = world(0, size).divided(cut(total), limit, int)
    assert max(items) <= limit
    assert sum(items) == total

"""Which rows an optimizer step of rl.dpo and rl.reward_model uses."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from rl.preferences.training import learn


def batches(num_rows, batch_size, steps=0):
    """The rows of each step."""
    used = []

    def update(rows):
        used.append(list(rows))
        return {"loss": 0.5, "accuracy": 0.5}

    def ignore(*arguments):
        pass

    config = SimpleNamespace(steps=steps, batch_size=batch_size, seed=0, max_seconds=0, data="d")
    learn(
        SimpleNamespace(update=update),
        range(num_rows),
        config,
        SimpleNamespace(count=ignore, report=ignore),
        SimpleNamespace(step=ignore, draw=ignore),
    )
    return used


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "sizes"),
    [(20, 64, [20]), (70, 64, [64, 6]), (64, 64, [64]), (65, 1, [1] * 65), (1, 8, [1])],
)
def test_one_pass_uses_each_row_once(num_rows, batch_size, sizes):
    used = batches(num_rows, batch_size)
    assert [len(rows) for rows in used] == sizes
    assert sorted(row for rows in used for row in rows) == list(range(num_rows))


def test_a_batch_of_more_rows_than_there_are_is_a_pass():
    used = batches(20, 64, steps=3)
    assert [sorted(rows) for rows in used] == [list(range(20))] * 3
    assert used[0] != used[1], "in a new order"


def test_several_passes_use_each_row_equally_often():
    used = batches(70, 32, steps=35)
    assert set(Counter(row for rows in used for row in rows).values()) == {16}

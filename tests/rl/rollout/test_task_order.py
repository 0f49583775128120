"""Tasks come once per pass, and a position is all the state there is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rl.rollout.task_order import TaskOrder


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 3))
def test_every_task_once_per_pass(num_tasks, seed, number):
    taken = TaskOrder(num_tasks, seed).take(number * num_tasks, num_tasks)
    assert sorted(taken) == list(range(num_tasks))


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(0, 9), *[st.integers(0, 60)] * 3)
def test_parts_of_the_order_add_up(num_tasks, seed, start, first, second):
    order, other = TaskOrder(num_tasks, seed), TaskOrder(num_tasks, seed)
    later = other.take(start + first, second)
    assert order.take(start, first) + later == other.take(start, first + second)


def test_passes_and_seeds_differ():
    order = TaskOrder(100, 0)
    assert order.take(0, 100) != order.take(100, 100)
    assert order.take(0, 100) != TaskOrder(100, 1).take(0, 100)

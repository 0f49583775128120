"""Drawn puzzles: functions of (split, index, seed), splits held apart by a hash of their keys."""

from __future__ import annotations

from collections import Counter

import pytest

from envs.datasets.generated import NUM_TASKS, DrawnTasks, split_of


def numbers(split: str, seed: int = 0, family: str = "numbers") -> DrawnTasks[int]:
    return DrawnTasks(family, split, seed, lambda rng: rng.randrange(10_000), str)


def test_a_key_is_of_one_split_in_ten_or_the_rest():
    counts = Counter(split_of(str(number)) for number in range(20_000))
    assert counts["test"] == pytest.approx(2000, rel=0.1)
    assert counts["validation"] == pytest.approx(2000, rel=0.1)
    # The same on every machine and in every version of Python.
    assert [split_of(str(n)) for n in range(4)] == ["test", "validation", "train", "train"]


def test_every_task_is_of_its_split():
    for split in NUM_TASKS:
        tasks = numbers(split)
        assert {split_of(str(tasks[i])) for i in range(200)} == {split}


def test_seed_split_index_and_family_each_change_what_is_drawn():
    drawn = [[tasks[i] for i in range(50)] for tasks in (numbers("train"), numbers("train"))]
    assert drawn[0] == drawn[1]
    for other in (numbers("train", 1), numbers("test"), numbers("train", family="others")):
        assert sum(other[i] == drawn[0][i] for i in range(50)) <= 2
    assert len(set(drawn[0])) > 45


def test_sizes_and_range():
    assert [len(numbers(split)) for split in NUM_TASKS] == [1_000_000, 1024, 4096]
    for index in (-1, 4096):
        with pytest.raises(IndexError, match=f"task {index} of split 'test': 0 to 4095"):
            numbers("test")[index]


def test_a_family_without_puzzles_for_a_split_says_so():
    same = DrawnTasks("sevens", "test", 0, lambda rng: 7, str)
    assert split_of("7") != "test"
    with pytest.raises(ValueError, match="sevens: 2000 draws gave none for 'test'"):
        same[0]

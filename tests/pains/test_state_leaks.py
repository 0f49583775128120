"""Complaint 15: state of an episode leaks into the next one.

TextArena's default wrapper never clears its history.
"""

from __future__ import annotations

import pytest

import envs
from envs.play import gold_of, play

NAMES = ["search-qa", "knights-knaves", "mastermind", "countdown", "sudoku", "math"]


@pytest.mark.parametrize("name", NAMES)
def test_the_second_episode_of_an_environment_equals_that_of_a_fresh_one(name):
    used, fresh = envs.make(name), envs.make(name)
    try:
        for junk in ("nonsense", "<answer> 1 </answer>"):
            used.reset(seed=5)
            used.step(junk)
        again = play(used, gold_of(used), seed=7)
        anew = play(fresh, gold_of(fresh), seed=7)
    finally:
        used.close()
        fresh.close()
    assert again == anew
    assert again.reward == pytest.approx(fresh.reward_range[1])

"""The gold author and the careless one."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.play import play
from envs.search.scripted_policies import CarelessPolicy, ErrorRates, GoldPolicy
from envs.search.world import make_world


def test_gold_author_word_for_word():
    author = GoldPolicy()
    assert (
        author("The person is Bako. Find the sport of the friend.")
        == "<think> </think> <search> friend of Bako </search>"
    )
    assert (
        author(" <result>\nThe friend of Bako is Rumi.\n</result>")
        == " <think> </think> <search> sport of Rumi </search>"
    )
    assert (
        author(" <result>\nThe sport of Rumi is chess.\n</result>")
        == " <think> </think> <answer> \\boxed{ chess } </answer>"
    )


def test_gold_author_says_what_it_cannot_read():
    with pytest.raises(ValueError, match="'Hello' is neither a question"):
        GoldPolicy()("Hello")


def accuracy(how: ErrorRates, hops: str, count: int = 300) -> float:
    env = envs.make("search-qa-v0", hops=hops)
    rng = np.random.default_rng(0)
    played = [
        play(env, CarelessPolicy(make_world(0), rng, how), task=task) for task in range(count)
    ]
    env.close()
    assert all(p.steps[-1].info["scores"]["format"] == 1.0 for p in played)
    return float(np.mean([p.steps[-1].info["scores"]["em"] for p in played]))


def test_without_short_cuts_it_is_the_gold_author():
    assert accuracy(ErrorRates(0.0, 0.0, 0.0), "mixed", 50) == 1.0


@pytest.mark.parametrize(
    ("how", "hops", "expected"),
    [
        # One of a dozen words, or of 300 towns: (3 / 12 + 1 / 300) / 4.
        (ErrorRates(1.0, 0.0, 0.0), "1", 0.063),
        # One of the six passages about the person, whichever the library puts first.
        (ErrorRates(0.0, 1.0, 0.0), "1", 1 / 6),
        # A name where a home, colour, drink or sport was asked for.
        (ErrorRates(0.0, 0.0, 1.0), "2", 0.0),
        (ErrorRates(0.0, 0.0, 0.6), "2", 0.4),
    ],
)
def test_every_short_cut_costs_what_it_should(how, hops, expected):
    # Four standard errors of 300 draws.
    assert accuracy(how, hops) == pytest.approx(expected, abs=4 * (expected * 0.9 / 300) ** 0.5)


def test_demonstrations_leave_something_to_learn():
    env = envs.make("search-qa-v0")
    rng = np.random.default_rng(1)
    right = [
        play(env, env.demonstrator(rng), task=task).steps[-1].info["scores"]["em"]
        for task in range(400)
    ]
    env.close()
    assert 0.3 <= np.mean(right) <= 0.5

"""Kuhn poker: payoffs, the equilibria of Kuhn 1950, and exploitability by hand."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from envs.poker.game import (
    GAME_VALUE,
    best_response_value,
    equilibrium,
    exploitability,
    information_sets,
    payoff,
    value,
)

KEYS = (*information_sets(0), *information_sets(1))


def uniform():
    return {key: (F(1, 2), F(1, 2)) for key in KEYS}


def test_there_are_twelve_information_sets():
    assert information_sets(0) == ("J", "Q", "K", "Jpb", "Qpb", "Kpb")
    assert information_sets(1) == ("Jp", "Qp", "Kp", "Jb", "Qb", "Kb")


@pytest.mark.parametrize(
    ("cards", "history", "won"),
    [
        ("KQ", "", None),
        ("KQ", "pb", None),
        ("KQ", "pp", 1),
        ("QK", "pp", -1),
        ("JK", "bp", 1),
        ("KJ", "pbp", -1),
        ("KJ", "bb", 2),
        ("JQ", "bb", -2),
        ("QJ", "pbb", 2),
        ("JK", "pbb", -2),
    ],
)
def test_payoffs_are_those_of_kuhn(cards, history, won):
    assert payoff(cards, history) == won


@pytest.mark.parametrize("alpha", [F(0), F(1, 7), F(1, 6), F(1, 3)])
def test_every_equilibrium_has_the_games_value_and_cannot_be_exploited(alpha):
    both = equilibrium(alpha)
    assert value(both, both) == GAME_VALUE == F(-1, 18)
    assert exploitability(both) == 0
    # The best answer of each seat earns exactly the game's value.
    assert best_response_value(both, 0) == F(1, 18)
    assert best_response_value(both, 1) == F(-1, 18)


def test_the_players_need_not_choose_the_same_equilibrium():
    assert value(equilibrium(F(0)), equilibrium(F(1, 3))) == F(-1, 18)


@pytest.mark.parametrize("alpha", [F(-1, 100), F(34, 100)])
def test_alpha_is_at_most_a_third(alpha):
    with pytest.raises(ValueError, match=r"alpha .* must be from 0 to 1/3"):
        equilibrium(alpha)


def test_a_first_player_beside_the_family_can_be_exploited():
    wrong = {**equilibrium(F(1, 3)), "K": (F(1, 2), F(1, 2))}
    assert exploitability(wrong) > 0


def test_the_uniform_strategy_is_11_24():
    # OpenSpiel publishes the same 0.458333 for its uniform strategy.
    assert exploitability(uniform()) == F(11, 24)
    assert value(uniform(), uniform()) == F(1, 8)
    floats = dict.fromkeys(KEYS, (0.5, 0.5))
    assert exploitability(floats) == pytest.approx(11 / 24, abs=1e-12)


def test_a_strategy_that_always_folds_loses_its_chip_in_both_seats():
    # Who faces it bets always: 1 chip in each hand.
    assert exploitability(dict.fromkeys(KEYS, (1, 0))) == 1


def test_a_strategy_that_always_bets_by_hand():
    # First: the best answer folds J and calls Q and K. J: -1. Q: 2 against J, -2 against K. K: 2.
    strategy = dict.fromkeys(KEYS, (0, 1))
    assert best_response_value(strategy, 0) == F(-1 + 0 + 2, 3)
    # Second: the best first player checks and then folds J, calls with Q and K: the same.
    assert best_response_value(strategy, 1) == F(1, 3)


def test_an_illegal_move_loses_2_chips():
    never = dict.fromkeys(KEYS, (0, 0))
    assert exploitability(never) == 2
    strategy = {**equilibrium(F(1, 3)), "Kb": (0, F(1, 2))}
    # In 1 hand of 3 the second player has K. Its best opponent bets always, and wins 2 instead of
    # losing 2 in half of these hands: bets of J, Q and K against Q and J lose as before.
    assert best_response_value(strategy, 1) > F(-1, 18)


@pytest.mark.parametrize(
    ("moves", "says"),
    [((0.7, 0.7), "must be probabilities"), ((-0.1, 1.0), "must be probabilities")],
)
def test_two_numbers_that_are_no_probabilities_are_refused(moves, says):
    with pytest.raises(ValueError, match=says):
        exploitability({**uniform(), "Q": moves})


def test_a_missing_information_set_is_named():
    with pytest.raises(ValueError, match="lacks the information set 'Kb'"):
        exploitability({key: (1, 0) for key in KEYS if key != "Kb"})

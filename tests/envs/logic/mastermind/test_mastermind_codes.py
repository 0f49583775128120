"""Codes: what is said of a guess, what is still possible, splits held apart."""

from __future__ import annotations

from collections import Counter

import pytest

from envs.datasets.generated import NUM_TASKS
from envs.logic.mastermind.codes import (
    CodeTasks,
    Feedback,
    feedback,
    game,
    num_codes,
    parse_guess,
)


@pytest.mark.parametrize(
    ("guess", "secret", "black", "white"),
    [
        ("1234", "1234", 4, 0),
        ("1234", "4321", 0, 4),
        ("1122", "2211", 0, 4),
        ("1122", "1345", 1, 0),
        ("1112", "2111", 2, 2),
        ("3331", "1233", 1, 2),
        ("55", "66", 0, 0),
    ],
)
def test_what_is_said_of_a_guess(guess, secret, black, white):
    assert feedback(guess, secret) == feedback(secret, guess) == Feedback(black, white)


def pegs_by_hand(guess, secret):
    """Strike out what is in its place, then look each remaining digit up."""
    rest = [(g, s) for g, s in zip(guess, secret, strict=True) if g != s]
    elsewhere = Counter(g for g, _ in rest) & Counter(s for _, s in rest)
    return len(guess) - len(rest), elsewhere.total()


@pytest.mark.parametrize(
    ("pegs", "colours", "repeats"), [(3, 5, True), (4, 6, True), (4, 6, False)]
)
def test_what_would_be_said_of_a_guess_for_every_code(pegs, colours, repeats):
    rules = game(pegs, colours, repeats)
    for guess in ("1" * pegs, rules.codes[len(rules.codes) // 3], "5122"[:pegs]):
        answers = rules.answers(guess, rules.everything())
        for code, answer in zip(rules.codes, answers.tolist(), strict=True):
            black, white = pegs_by_hand(guess, code)
            assert answer == black * (pegs + 1) + white
            assert feedback(guess, code) == Feedback(black, white)


def test_what_is_still_possible():
    rules = game(3, 5, True)
    left = rules.possible("122", Feedback(1, 0), rules.everything())
    assert {rules.codes[i] for i in left} == {
        code for code in rules.codes if pegs_by_hand("122", code) == (1, 0)
    }
    assert len(rules.possible("134", Feedback(3, 0), left)) == 1


@pytest.mark.parametrize(
    ("pegs", "colours", "repeats", "count"),
    [(4, 6, True, 1296), (4, 6, False, 360), (3, 5, True, 125), (4, 3, False, 0)],
)
def test_numbers_of_codes(pegs, colours, repeats, count):
    assert num_codes(pegs, colours, repeats) == count
    if count:
        assert len(set(game(pegs, colours, repeats).codes)) == count


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("<guess> 123 </guess>", "123"),
        ("I think <guess>1 2\n3</guess>, then", "123"),
        ("<guess></guess>", ""),
        ("123", None),
        ("<guess> 123", None),
        ("</guess> 123 <guess>", None),
        ("<guess> 123 </guess> <guess> 321 </guess>", None),
        ("<guess> <guess> 123 </guess>", None),
        ("<guess> 1,2,3 </guess>", None),
        ("<guess> -123 </guess>", None),
        ("<guess> \N{ARABIC-INDIC DIGIT ONE}23 </guess>", None),
    ],
)
def test_guesses_are_read_strictly(text, guess):
    assert parse_guess(text) == guess


def test_which_guesses_a_game_takes():
    rules = game(3, 5, True)
    assert [rules.is_guess(text) for text in ("123", "555", "126", "120", "12", "1234", "")] == [
        *(True, True),
        *(False, False, False, False, False),
    ]


@pytest.mark.parametrize(
    ("pegs", "colours", "repeats"), [(3, 5, True), (4, 5, False), (3, 6, False)]
)
def test_no_code_is_in_two_splits_and_every_code_is_in_one(pegs, colours, repeats):
    rules = game(pegs, colours, repeats)
    found = {
        split: {CodeTasks(split, seed, rules)[i] for seed in (0, 1) for i in range(1024)}
        for split in NUM_TASKS
    }
    assert sorted(code for codes in found.values() for code in codes) == list(rules.codes)
    assert all(found.values())

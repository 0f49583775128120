"""kuhn-poker-v0: roles, prompts, legal moves, payoffs, and a policy that plays both sides."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import envs
from envs.poker.env import KuhnOptions, legal_moves, parse_move, prompt, written
from envs.poker.game import payoff


@pytest.fixture
def env():
    made = envs.make("kuhn-poker")
    yield made
    made.close()


def hand(env, cards: str) -> int:
    """Index of a hand with these cards."""
    return next(index for index in range(100) if env.tasks[index].cards == cards)


def test_check_env_holds_with_copies():
    report = envs.check_env(envs.make("kuhn-poker"))
    assert report.skipped == ()
    assert "copies" in report.rules


def test_a_hand_of_three_moves_shows_each_role_only_its_card(env):
    first, _ = env.reset(options={"task": hand(env, "QK")})
    assert env.roles == ("first", "second")
    assert env.role == "first"
    assert first == "Your card is Q. You play first. Do you check or bet?"
    step = env.step("<move>check</move>")
    assert env.role == "second"
    assert step.observation == (
        "Your card is K. You play second. The first player checks. Do you check or bet?"
    )
    step = env.step("I bet. <move> bet </move>")
    assert env.role == "first"
    assert step.observation == "The second player bets. Do you fold or call?"
    assert not step.rewards
    step = env.step("<move>call</move>")
    assert step.terminated
    assert step.rewards == {"first/chips": -2.0, "second/chips": 2.0}
    assert step.info["scores"] == {"legal": 1.0}


@pytest.mark.parametrize(
    ("moves", "history"),
    [
        (("check", "check"), "pp"),
        (("bet", "fold"), "bp"),
        (("bet", "call"), "bb"),
        (("check", "bet", "fold"), "pbp"),
        (("check", "bet", "call"), "pbb"),
    ],
)
@pytest.mark.parametrize("cards", ["JQ", "JK", "QJ", "QK", "KJ", "KQ"])
def test_each_way_through_the_game_pays_its_payoff(env, cards, moves, history):
    env.reset(options={"task": hand(env, cards)})
    steps = [env.step(written(move)) for move in moves]
    won = payoff(cards, history)
    assert steps[-1].rewards == {"first/chips": won, "second/chips": -won}
    assert [step.terminated for step in steps] == [False] * (len(moves) - 1) + [True]
    assert steps[-1].reward == 0


@pytest.mark.parametrize(
    "text",
    ["", "bet", "<move>fold</move>", "<move>raise</move>", "<move>bet</move> <move>bet</move>"],
)
def test_an_illegal_move_ends_the_hand_and_loses_2_chips_to_the_other_role(env, text):
    env.reset(options={"task": 0})
    step = env.step(text)
    assert step.rewards == {"first/chips": -2.0, "second/chips": 2.0}
    assert (step.terminated, step.info["scores"]) == (True, {"legal": 0.0})
    env.reset(options={"task": 0})
    env.step("<move>bet</move>")
    step = env.step(text.replace("fold", "check"))
    assert step.rewards == {"first/chips": 2.0, "second/chips": -2.0}


def test_the_legal_moves_are_those_in_the_observation():
    for history, moves in {
        "": ("check", "bet"),
        "p": ("check", "bet"),
        "b": ("fold", "call"),
    }.items():
        shown = prompt("K", history)
        assert legal_moves(shown) == moves
        assert all(f"{move}?" in shown or f"{move} or" in shown for move in moves)
        assert [parse_move(written(move), history) for move in moves] == ["p", "b"]
    assert legal_moves(prompt("K", "pb")) == ("fold", "call")


def test_the_six_deals_are_equally_likely_in_every_split():
    for split in ("train", "validation", "test"):
        tasks = envs.make("kuhn-poker", split=split).tasks
        dealt = Counter(tasks[index].cards for index in range(900))
        assert set(dealt) == {"JQ", "JK", "QJ", "QK", "KJ", "KQ"}
        assert all(110 < count < 190 for count in dealt.values())


@pytest.mark.parametrize(("cards", "bold"), [("JQ", 0.25), ("QK", 0.5), ("KJ", 0.75)])
def test_the_demonstrator_bets_high_cards_and_is_wrong_in_a_tenth_of_its_moves(env, cards, bold):
    rng, moves = np.random.default_rng(0), Counter[str]()
    first, _ = env.reset(options={"task": hand(env, cards)})
    policy = env.demonstrator(rng)
    for _ in range(2000):
        moves[policy(first)] += 1
    assert set(moves) == {written(move) for move in ("check", "bet", "fold", "call")}
    assert 0.07 < (moves[written("fold")] + moves[written("call")]) / 2000 < 0.13
    assert abs((moves[written("bet")] + moves[written("call")]) / 2000 - bold) < 0.04


def test_a_hand_needs_three_turns():
    with pytest.raises(ValueError, match=r"max_turns \(2\) must be >= 3"):
        KuhnOptions(max_turns=2)

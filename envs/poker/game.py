"""Kuhn poker: its rules, its equilibria, and the exact exploitability of a strategy.

Kuhn, *A simplified two-person poker*, 1950. The deck is J, Q and K. Each player pays 1 chip and
gets one card. A player passes ("p": check or fold) or bets 1 chip ("b": bet or call). A history is
the string of the moves so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import permutations, product

CARDS = "JQK"
"""The deck, from the lowest card to the highest."""
HISTORIES = (("", "pb"), ("p", "b"))
"""The histories after which the first player acts, and those of the second player."""
ILLEGAL_LOSS = 2
"""Chips that an illegal move loses to the other player: the largest loss of a hand."""
GAME_VALUE = Fraction(-1, 18)
"""Chips that the first player earns on average if both players play an equilibrium."""
MAX_MOVES = 3

Number = float | Fraction
Strategy = Mapping[str, tuple[Number, Number]]
"""For each information set of one player or of both, the probabilities to pass and to bet. An
information set is the player's card followed by the history: "Qpb". The rest of the probability is
that of an illegal move."""


def information_sets(player: int) -> tuple[str, ...]:
    """The six information sets of player 0 (the first) or 1 (the second)."""
    return tuple(card + history for history in HISTORIES[player] for card in CARDS)


def payoff(cards: str, history: str) -> int | None:
    """Chips that the first player wins, or None while the hand is not over.

    Args:
        cards: the first player's card, then the second player's.
        history: the moves so far.
    """
    if history in ("", "p", "b", "pb"):
        return None
    if history == "bp":
        return 1
    if history == "pbp":
        return -1
    stake = 1 if history == "pp" else 2
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake


def equilibrium(alpha: Number = Fraction(1, 3)) -> dict[str, tuple[Number, Number]]:
    """An equilibrium for both players; all of the first player's are of this form (Kuhn 1950).

    Args:
        alpha: probability from 0 to 1/3 with which the first player bets a jack.

    Raises:
        ValueError: ``alpha`` is out of range.
    """
    third = Fraction(1, 3)
    if not 0 <= alpha <= third:
        raise ValueError(f"alpha ({alpha}) must be from 0 to 1/3")
    bets: dict[str, Number] = {"J": alpha, "Q": 0, "K": 3 * alpha}
    bets |= {"Jpb": 0, "Qpb": alpha + third, "Kpb": 1}
    bets |= {"Jp": third, "Qp": 0, "Kp": 1, "Jb": 0, "Qb": third, "Kb": 1}
    return {key: (1 - bet, bet) for key, bet in bets.items()}


def value(first: Strategy, second: Strategy) -> Number:
    """Chips that the first player earns on average.

    Args:
        first: the first player's strategy; entries of the second player are ignored.
        second: the second player's strategy.

    Raises:
        ValueError: an information set is missing, or its two numbers are no probabilities.
    """
    _check(first, 0)
    _check(second, 1)
    return _value(first, second)


def best_response_value(strategy: Strategy, player: int) -> Number:
    """Chips that the best opponent of ``player`` earns on average.

    Raises:
        ValueError: an information set is missing, or its two numbers are no probabilities.
    """
    _check(strategy, player)
    if player == 0:
        return max(-_value(strategy, answer) for answer in _pure_strategies(1))
    return max(_value(answer, strategy) for answer in _pure_strategies(0))


def exploitability(strategy: Strategy) -> Number:
    """Chips that a best opponent earns on average in a random seat against ``strategy``.

    The result is 0 exactly for an equilibrium and at most 2. It is exact if all probabilities are
    fractions.

    Args:
        strategy: the strategy for both seats.

    Raises:
        ValueError: an information set is missing, or its two numbers are no probabilities.
    """
    return (best_response_value(strategy, 0) + best_response_value(strategy, 1)) / 2


def _value(first: Strategy, second: Strategy) -> Number:
    deals = ["".join(pair) for pair in permutations(CARDS, 2)]
    total = sum((_expected((first, second), cards, "") for cards in deals), Fraction(0))
    return total / len(deals)


def _expected(strategies: tuple[Strategy, Strategy], cards: str, history: str) -> Number:
    """Chips that the first player earns on average from here on."""
    ended = payoff(cards, history)
    if ended is not None:
        return ended
    player = len(history) % 2
    passes, bets = strategies[player][cards[player] + history]
    illegal = 1 - passes - bets
    return (
        passes * _expected(strategies, cards, history + "p")
        + bets * _expected(strategies, cards, history + "b")
        + illegal * (-ILLEGAL_LOSS if player == 0 else ILLEGAL_LOSS)
    )


def _pure_strategies(player: int) -> Iterator[Strategy]:
    """All 64 strategies of a player that choose one legal move in each information set."""
    keys = information_sets(player)
    for moves in product(((1, 0), (0, 1)), repeat=len(keys)):
        yield dict(zip(keys, moves, strict=True))


def _check(strategy: Strategy, player: int) -> None:
    for key in information_sets(player):
        if key not in strategy:
            raise ValueError(f"the strategy lacks the information set {key!r}")
        passes, bets = strategy[key]
        if not (passes >= 0 and bets >= 0 and passes + bets <= 1 + 1e-9):
            raise ValueError(
                f"{key}: {passes} and {bets} must be probabilities with a sum of at most 1"
            )

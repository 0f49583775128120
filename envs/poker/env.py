"""``kuhn-poker-v0``: hands of Kuhn poker between the roles "first" and "second".

The policy plays both roles, unless a partner plays one. Each role reads its own card and the other
role's moves, and the observation names the legal moves::

    first:  Your card is Q. You play first. Do you check or bet?
    <move> check </move>
    second: Your card is K. You play second. The first player checks. Do you check or bet?
    <move> bet </move>
    first:  The second player bets. Do you fold or call?
    <move> call </move>

Each role earns the chips that it wins, so the two returns sum to 0. Any other text than one legal
move between the tags ends the hand and loses 2 chips, the largest loss of a hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.datasets.generated import NUM_TASKS, check_index, task_rng
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, finish, go_on
from envs.options import Card
from envs.poker.game import CARDS, ILLEGAL_LOSS, MAX_MOVES, payoff

ROLES = ("first", "second")
WRONG_SHARE = 0.1
"""Probability with which the demonstrator's move is illegal."""
BOLDNESS = {"J": 0.25, "Q": 0.5, "K": 0.75}
"""Probability with which the demonstrator bets or calls with a card."""
INSTRUCTIONS = (
    "Kuhn poker: the deck is J, Q and K, and K is the highest card. Each of the two players pays 1 "
    "chip and gets one card. A player checks, or bets 1 chip. After a bet the other player folds, "
    "or calls with 1 chip. Without a fold the higher card wins all chips. Write each move "
    "between <move> and </move>. An illegal move loses 2 chips."
)
_MOVE = re.compile(r"<move>\s*(\w+)\s*</move>")


@dataclass(frozen=True, kw_only=True)
class KuhnOptions(EnvOptions):
    """Options of the hands."""

    max_turns: int = MAX_MOVES
    """Maximum number of moves of both players; a hand has up to 3."""
    instructions: bool = True
    """Whether a system message holds the rules; without it the agent must know the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_turns < MAX_MOVES:
            raise ValueError(f"max_turns ({self.max_turns}) must be >= {MAX_MOVES}, a hand's moves")


@dataclass(frozen=True, slots=True)
class Hand:
    """A hand: its number within a split, and both cards."""

    split: str
    number: int
    cards: str
    """The first player's card, then the second player's."""


class Hands:
    """The hands of a split. Every split deals all six pairs of cards in an order of its own."""

    def __init__(self, split: str, seed: int) -> None:
        self._split, self._seed = split, seed

    def __len__(self) -> int:
        return NUM_TASKS[self._split]

    def __getitem__(self, index: int) -> Hand:
        """Hand ``index``.

        Raises:
            IndexError: there is no such hand.
        """
        check_index(index, self._split)
        rng = task_rng("kuhn poker", self._split, self._seed, index)
        first = CARDS[int(rng.random() * 3)]
        left = CARDS.replace(first, "")
        return Hand(self._split, index, first + left[int(rng.random() * 2)])


@dataclass(slots=True)
class KuhnState:
    """An episode's state."""

    cards: str
    history: str = ""
    """The moves so far, as in ``envs.poker.game``."""


class KuhnPokerEnv(TextEnv[Hand, KuhnState]):
    """Hands of Kuhn poker; see the module's docstring for the protocol."""

    Options = KuhnOptions
    card = Card(
        agent="plays both sides of Kuhn poker, a game with a known solution",
        turns="2 or 3",
        reward="the chips that each role wins or loses",
    )
    success_score = "legal"
    stop = ("</move>",)
    roles = ROLES
    # The return of an episode is the sum of both roles' returns, which is 0. A range needs a width.
    reward_range = (-1.0, 1.0)
    floor_waiver = "the returns of the two roles sum to 0 in every hand"

    def __init__(self, options: KuhnOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, Hands(options.split, options.seed), services)
        self.system_prompt = INSTRUCTIONS if options.instructions else None

    def begin(self, task: Hand) -> str:
        """The first player's card."""
        self.state = KuhnState(task.cards)
        self.role = ROLES[0]
        return prompt(task.cards[0], "")

    def turn(self, action: Action) -> Reply:
        """Play a move."""
        state, player = self.state, len(self.state.history) % 2
        move = parse_move(action.content, state.history)
        if move is None:
            return self._over(-ILLEGAL_LOSS if player == 0 else ILLEGAL_LOSS, legal=False)
        state.history += move
        won = payoff(state.cards, state.history)
        if won is not None:
            return self._over(won, legal=True)
        player = 1 - player
        self.role = ROLES[player]
        return go_on(prompt(state.cards[player], state.history))

    def best_return(self, task_index: int) -> float:
        """The sum of both roles' returns: 0 in every hand."""
        return 0.0

    def gold_policy(self) -> Callable[[str], str]:
        """A policy of legal moves. Every hand's returns sum to 0, so no policy earns more."""
        return lambda observation: written(legal_moves(observation)[0])

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """A policy that bets higher cards more often, but often wrongly; some moves are illegal."""

        def act(observation: str) -> str:
            moves, state = legal_moves(observation), self.state
            if rng.random() < WRONG_SHARE:
                moves = ("fold", "call") if "check" in moves else ("check", "bet")
            card = state.cards[len(state.history) % 2]
            return written(moves[int(rng.random() < BOLDNESS[card])])

        return act

    def _over(self, won: int, *, legal: bool) -> Reply:
        """End a hand in which the first player wins ``won`` chips."""
        cards = self.state.cards
        result = f"The first player had {cards[0]}, the second player {cards[1]}."
        rewards = {f"{ROLES[0]}/chips": float(won), f"{ROLES[1]}/chips": float(-won)}
        return finish(rewards, result, {"legal": float(legal)})


def legal_moves(observation: str) -> tuple[str, str]:
    """The two moves that an observation names: the pass, then the bet."""
    return ("fold", "call") if observation.endswith("Do you fold or call?") else ("check", "bet")


def moves_after(history: str) -> tuple[str, str]:
    """The names of the pass and of the bet after a history."""
    return ("fold", "call") if history.endswith("b") else ("check", "bet")


def prompt(card: str, history: str) -> str:
    """The observation of the player that acts after ``history``.

    Args:
        card: the player's card.
        history: the moves so far.
    """
    passes, bets = moves_after(history)
    question = f"Do you {passes} or {bets}?"
    if history == "":
        return f"Your card is {card}. You play first. {question}"
    if history == "pb":
        return f"The second player bets. {question}"
    done = "bets" if history == "b" else "checks"
    return f"Your card is {card}. You play second. The first player {done}. {question}"


def written(move: str) -> str:
    """The text of a move."""
    return f"<move>{move}</move>"


def parse_move(text: str, history: str) -> str | None:
    """The move of a text: "p" or "b".

    None if the text does not hold exactly one pair of tags, or the move between them is illegal.
    """
    if text.count("<move>") != 1 or text.count("</move>") != 1:
        return None
    found, moves = _MOVE.search(text), moves_after(history)
    if found is None or found[1] not in moves:
        return None
    return "pb"[moves.index(found[1])]

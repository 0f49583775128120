"""Names and options of reasoning-gym's tasks. Only ``import_library`` needs the library."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from envs.env import EnvOptions
from envs.options import Card
from tools.registry import PluginImportError

_NAMES = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
binary_alternation binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic
chain_sum circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits count_primes
countdown course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
family_relationships figlet_font fraction_simplification futoshiki game_of_life
game_of_life_halting gcd graph_color group_anagrams gsm_symbolic intermediate_integration
isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting
letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku
modulo_grid n_queens needle_haystack number_filtering number_format number_sequence
number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
polynomial_multiplication pool_matrix power_function prime_factorization products
propositional_logic puzzle24 quantum_lock ransom_note rearc rectangle_count rotate_matrix
rotten_oranges rubiks_cube rush_hour self_reference sentence_reordering shortest_path
simple_equations simple_geometry simple_integration sokoban spell_backward spiral_matrix
string_insertion string_manipulation string_splitting string_synthesis sudoku survo syllogism
time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
zebra_puzzles
"""
TASKS = tuple(_NAMES.split())
"""All tasks of reasoning-gym except ``composite``, which is a mixture, and ``codeio``, which is not
deterministic."""

COMPUTES = (
    *("binary_matrix", "countdown", "intermediate_integration", "n_queens"),
    *("polynomial_multiplication", "simple_integration", "spiral_matrix", "string_insertion"),
)
"""Tasks whose scorers pass answers to ``eval``, ``sympy.parse_expr`` or unbounded arithmetic."""

EXACT = ("coin_flip", "game_of_life", "game_of_life_halting", "letter_jumble", "number_sorting")
"""Tasks whose scorers give wrong answers the full score or most of it: 0 as a probability, an empty
board, any word, more words, numbers that are off by less than 1. turnwise accepts only the
library's own answer: the same number, list or text."""
_ARITHMETIC, _POWERS = re.compile(r"[0-9+\-*/() ]{1,200}"), re.compile(r"\* *\*|/ */")
_NAN = re.compile(r"(?<![a-z])nan(?![a-ik-z])", re.IGNORECASE)

CARD = Card(
    agent="answers a question of the library reasoning-gym",
    reward="the library's score",
    needs="`pip install 'turnwise[reasoning-gym]'`",
)


@dataclass(frozen=True, kw_only=True)
class GymOptions(EnvOptions):
    """The library's settings of a task, and whether it may evaluate answers."""

    config: str = "{}"
    """The library's settings of the task as JSON: {"n_people": 5}."""
    trust_answers: bool = False
    """Whether scorers may evaluate answers as Python, in this process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            config: Any = json.loads(self.config)
        except ValueError as error:
            raise ValueError(f"config ({self.config!r}) must be JSON: {error}") from error
        if not isinstance(config, dict) or {"seed", "size"} & set(config):
            raise ValueError(f"config ({self.config!r}) must be an object without seed and size")
        if self.max_turns != 1:
            raise ValueError(f"max_turns ({self.max_turns}) must be 1: the first answer counts")


def score_of(task: str, scorer: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The library's score of an answer, from 0 to 1.

    An answer earns 0 if the scorer raises an exception. An answer that contains "nan" earns 0 if
    the library's own answer does not, because some scorers accept nan for any number.
    """
    gold = str(entry["answer"])
    if task in EXACT:
        return float(_same(answer, gold))
    if task == "puzzle24":
        return float(_makes_24(answer, entry["metadata"]["numbers"]))
    if _NAN.search(answer) and not _NAN.search(gold):
        return 0.0
    try:
        return min(max(float(scorer.score_answer(answer, entry)), 0.0), 1.0)
    except Exception:
        return 0.0


def _same(answer: str, gold: str) -> bool:
    """Whether two texts are the same number, list of numbers, or words in lower case."""
    try:
        number, right = _number(answer), _number(gold)
        return math.isclose(number, right, rel_tol=1e-3)
    except (ValueError, ZeroDivisionError):
        pass
    try:
        return bool(_numbers(_listed(answer)) == _numbers(_listed(gold)))
    except (ValueError, TypeError, RecursionError):
        return answer.lower().split() == gold.lower().split()


def _number(text: str) -> float:
    top, _, bottom = text.replace(",", "").partition("/")
    return float(top) / float(bottom or 1)


def _listed(text: str) -> Any:
    return json.loads(text.replace("'", '"'))


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else float(value)


def _makes_24(answer: str, numbers: list[int]) -> bool:
    """Whether an expression has the value 24 and uses each number once, as the question says.

    The library's scorer accepts any four numbers of its range.
    """
    used = sorted(map(int, re.findall("[0-9]+", answer)))
    if used != sorted(numbers) or not _ARITHMETIC.fullmatch(answer) or _POWERS.search(answer):
        return False
    exact = re.sub("[0-9]+", r"Fraction(\g<0>)", answer.strip())
    try:
        # Nothing but these numbers, + - * / and parentheses is evaluated.
        return bool(eval(exact, {"__builtins__": {}, "Fraction": Fraction}) == 24)
    except (ArithmeticError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def serve_draws() -> None:
    """Draw entries for another process; see ``envs.adapters.reasoning_gym``.

    The source of this function runs by itself, so it imports all that it needs. Nothing but the
    request decides an entry: the process has a fixed hash seed, and the global generators and the
    date are set before each draw.
    """
    import datetime
    import json
    import os
    import pickle
    import random
    import sys

    import numpy
    from reasoning_gym import create_dataset as create
    from reasoning_gym.arithmetic import time_intervals

    class Date(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return cls(2025, 1, 1)

    def seed(number: int) -> None:
        random.seed(number)
        numpy.random.seed(number)

    def draw(name: str, config: str, number: int) -> Any:
        if (name, config) not in made:
            seed(0)
            made[name, config] = create(name, size=1, seed=0, **json.loads(config))
        seed(number)
        try:
            return made[name, config][number]
        except IndexError:  # This data set draws all its entries at construction.
            return create(name, size=1, seed=number, **json.loads(config))[0]

    made: dict[tuple[str, str], Any] = {}
    time_intervals.date = Date
    replies = os.fdopen(os.dup(1), "wb")
    # The library prints while it draws.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = pickle.dumps((draw(*request), ""))
        except Exception as error:
            reply = pickle.dumps((None, f"{type(error).__name__}: {error}"))
        replies.write(reply)
        replies.flush()


def import_library(task: str) -> Any:
    """Import the module ``reasoning_gym``.

    Raises:
        PluginImportError: the library is not installed, or fails to import.
    """
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise PluginImportError(
            f"reasoning-gym/{task}-v0 needs the library reasoning-gym ({error}): "
            f"pip install 'turnwise[reasoning-gym]'"
        ) from error

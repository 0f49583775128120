"""Rules that select the episodes of a task to imitate and to compare."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from envs.rewards import Rubric, Transcript, make_rubric

Keep = Literal["right", "best", "shortest"]
"""Rule that selects the samples to keep; see :func:`kept`."""
Pairs = Literal["none", "long2short", "right-wrong", "ranking"]
"""Rule that selects the samples to compare, in pairs (:func:`compared`) or ranked by reward."""
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Sample:
    """The properties of an episode that the selection rules use."""

    reward: float
    right: bool
    length: int
    """Number of sampled tokens."""


def kept(samples: Sequence[Sample], keep: Keep, per_task: int = 0) -> list[int]:
    """Indices of the samples to imitate. All ``samples`` belong to one task.

    ============  ====================================================  =========================
    ``right``     the first ``per_task`` right ones; 0: all             rejection sampling,
                                                                        DeepSeek-R1, 2501.12948
    ``best``      the one with the greatest reward, right or not        best of n
    ``shortest``  the shortest right one                                Kimi k1.5, 2501.12599
    ============  ====================================================  =========================

    Ties go to the first sample.

    Raises:
        ValueError: ``keep`` is not in the table.
    """
    places = range(len(samples))
    right = [place for place in places if samples[place].right]
    if keep == "right":
        return right[:per_task] if per_task else right
    if keep == "best":
        return sorted(places, key=lambda place: -samples[place].reward)[:1]
    if keep == "shortest":
        return sorted(right, key=lambda place: samples[place].length)[:1]
    raise ValueError(f"keep ({keep}) must be right, best or shortest")


def compared(samples: Sequence[Sample], pairs: Pairs, per_task: int = 0) -> list[tuple[int, int]]:
    """Pairs (preferred, other) of indices of the samples to compare.

    ``long2short`` is Kimi's rule (:func:`rl.preferences.losses.long2short_pairs`). ``right-wrong``
    compares each right sample with each wrong one. The pairs come in rounds: each round has one
    pair for each right sample.

    Args:
        samples: the samples of one task.
        pairs: the rule.
        per_task: maximum number of pairs; 0 keeps all.

    Raises:
        ValueError: the rule is unknown.
    """
    if pairs == "none":
        return []
    if pairs == "long2short":
        from rl.preferences.losses import long2short_pairs  # Imports torch.

        found = long2short_pairs([s.length for s in samples], [s.right for s in samples])
    elif pairs == "right-wrong":
        right = [place for place, sample in enumerate(samples) if sample.right]
        wrong = [place for place, sample in enumerate(samples) if not sample.right]
        found = [
            (better, wrong[(number + shift) % len(wrong)])
            for shift in range(len(wrong))
            for number, better in enumerate(right)
        ]
    else:
        raise ValueError(f"pairs ({pairs}) must be none, long2short or right-wrong")
    return found[:per_task] if per_task else found


@dataclass(frozen=True)
class Condition:
    """A bound on the value of a rubric."""

    text: str
    rubric: Rubric
    holds: Callable[[float], bool]

    def met(self, transcript: Transcript) -> bool:
        """Whether an episode meets the condition."""
        return self.holds(self.rubric.total(transcript))


def parse_conditions(text: str, key: str = "only") -> tuple[Condition, ...]:
    """Parse conditions such as ``language >= 0.9, repetition(ngram=4) >= -0.1``.

    Args:
        text: rubrics of ``envs.rewards``, each with ``>=`` or ``<=`` and a number.
        key: the name of the setting, for error messages.

    Raises:
        ValueError: the text is not a list of conditions, or an option of a rubric is wrong.
        UnknownNameError: a rubric is unknown.
    """
    if not text.strip():
        return ()
    expected = f"{key} ({text}) must be conditions such as language >= 0.9, repetition >= -0.1"
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(expected) from error
    nodes = body.elts if isinstance(body, ast.Tuple) else [body]
    return tuple(_condition(node, key, expected) for node in nodes)


def _condition(node: ast.expr, key: str, expected: str) -> Condition:
    match node:
        case ast.Compare(left=rubric, ops=[ast.GtE() | ast.LtE() as sign], comparators=[number]):
            worth = _number(number, expected)
        case _:
            raise ValueError(expected)
    least = isinstance(sign, ast.GtE)

    def holds(value: float) -> bool:
        return value >= worth - _TOLERANCE if least else value <= worth + _TOLERANCE

    return Condition(ast.unparse(node), make_rubric(ast.unparse(rubric), key), holds)


def _number(node: ast.expr, expected: str) -> float:
    try:
        number = float(ast.literal_eval(node))
    except (TypeError, ValueError) as error:
        raise ValueError(expected) from error
    if not math.isfinite(number):
        raise ValueError(expected)
    return number

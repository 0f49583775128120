"""Final answers of episodes: clusters of equal answers, their entropy, and the majority's success.

Two answers are equal if their normalised texts are equal, or if both are equal numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from envs.rewards.format import last_boxed
from envs.rewards.thinking import without_thoughts

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"#### *(\S+)")
_LINE = re.compile(r"(?:^|\n)\W*(?:final )?answer\s*:\s*([^\n]+)", re.IGNORECASE)
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[+-]?(\d{1,30}(\.\d{1,30})?|\d{1,30}/[1-9]\d{0,29})", re.ASCII)
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")


def final_answer(text: str) -> str | None:
    r"""The normalised final answer of an episode's last action, or None if the action is empty.

    The answer is the last ``\boxed{...}``, else the last ``<answer>...</answer>``, else the last
    ``#### ...``, else the last line ``Answer: ...``, else the whole text. Reasoning is not read.

    Example:
        >>> final_answer(r"<think>12?</think> It is \boxed{1,200.0}.")
        '1200'
    """
    visible = without_thoughts(text)
    boxed = last_boxed(visible)
    if boxed is not None:
        return normalised(boxed) or None
    for form in (_TAGGED, _HASHES, _LINE):
        if found := form.findall(visible):
            return normalised(found[-1]) or None
    return normalised(visible) or None


def normalised(answer: str) -> str:
    """An answer in lower case with single spaces; a number in its shortest form.

    Example:
        >>> normalised("1/2"), normalised(" 0.50 ")
        ('1/2', '1/2')
    """
    text = " ".join(answer.strip(" \t\n$*`.").lower().split())
    number = _FRACTION.sub(r"\1/\2", _GROUPED.sub("", text)).replace(" ", "")
    return str(Fraction(number)) if _NUMBER.fullmatch(number) else text


def cluster_sizes(answers: Sequence[str | None]) -> list[int]:
    """The sizes of the clusters of equal answers, largest first. Missing answers are no cluster.

    Example:
        >>> cluster_sizes(["A", "A", "B", "A", "C"])
        [3, 1, 1]
    """
    named = [answer for answer in answers if answer is not None]
    return sorted((named.count(answer) for answer in dict.fromkeys(named)), reverse=True)


def answer_entropy(answers: Sequence[str | None]) -> float:
    """The entropy of the clusters of equal answers, in nats.

    This is the discrete semantic entropy of Farquhar et al. 2024 (Nature 630, p. 625), with equal
    answers instead of mutual entailment. It is 0 if all answers agree.
    """
    sizes = cluster_sizes(answers)
    total = sum(sizes)
    return sum(size / total * math.log(total / size) for size in sizes)


def majority_at_k(answers: Sequence[str | None], successes: Sequence[float], k: int) -> float:
    """The expected success of the most frequent answer among k episodes of a task.

    The value is exact: the mean over all subsets of k episodes. Equally frequent answers are chosen
    with equal chance. An answer's success is the mean over its episodes. Missing answers have no
    vote.

    Args:
        answers: the final answers of a task's episodes.
        successes: the success of each episode.
        k: number of episodes that vote.

    Raises:
        ValueError: k is below 1 or above the number of episodes.

    Example:
        >>> majority_at_k(["A", "A", "B"], [1.0, 1.0, 0.0], 3)
        1.0
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"k ({k}) must be from 1 to the number of episodes ({len(answers)})")
    by_answer: dict[str, list[float]] = {}
    for answer, success in zip(answers, successes, strict=True):
        if answer is not None:
            by_answer.setdefault(answer, []).append(success)
    clusters = [(len(members), fmean(members)) for members in by_answer.values()]
    most = min(k, max((size for size, _ in clusters), default=0))
    total = sum(_won_with(votes, clusters, k, len(answers)) for votes in range(1, most + 1))
    return total / float(_binomial(len(answers), k, _chance(k, len(answers)))[k])


def _won_with(votes: int, clusters: Sequence[tuple[int, float]], k: int, count: int) -> float:
    """The part of :func:`majority_at_k` in which the winner has ``votes`` votes.

    Each episode is in the subset with probability :func:`_chance`; the part is multiplied by the
    probability that the subset then has k members. ``weights[n, t]`` is the probability of n votes
    in all, none above ``votes``, and t clusters with that number; ``values[n, t]`` is the same,
    multiplied by the sum of the successes of these t clusters.
    """
    chance = _chance(k, count)
    able = [(size, value) for size, value in clusters if size >= votes]
    ties = min(len(able), k // votes)
    weights, values = np.zeros((2, k + 1, ties + 1))
    # Missing answers and clusters too small to win take any number of places.
    others = count - sum(size for size, _ in able)
    weights[:, 0] = _binomial(others, k, chance)
    for size, value in able:
        taken = _binomial(size, votes, chance)
        before = np.stack((weights, values))
        after = np.zeros_like(before)
        for number in range(votes):
            after[:, number:] += taken[number] * before[:, : k + 1 - number]
        after[0, votes:, 1:] += taken[votes] * weights[:-votes, :-1]
        after[1, votes:, 1:] += taken[votes] * (values + value * weights)[:-votes, :-1]
        weights, values = after
    return float(sum(values[k, t] / t for t in range(1, ties + 1)))


def _chance(k: int, count: int) -> float:
    """A probability for each of ``count`` episodes with which k of them are a likely number."""
    return k / (count + 1)


def _binomial(size: int, most: int, chance: float) -> NDArray[np.float64]:
    """The probabilities of 0, 1, ... ``most`` hits among ``size`` draws with this chance."""
    found = np.zeros(most + 1)
    for hits in range(min(size, most) + 1):
        ways = math.lgamma(size + 1) - math.lgamma(hits + 1) - math.lgamma(size - hits + 1)
        found[hits] = math.exp(ways + hits * math.log(chance) + (size - hits) * math.log1p(-chance))
    return found

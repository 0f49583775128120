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

from envs.rewards.format import last_boxed
from envs.rewards.thinking import without_thoughts
from rl.evaluation import SEED

DRAWS = 2000
"""Number of random subsets for maj@k, where k is neither 1 nor the number of episodes."""
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


def majority_at_k(
    answers: Sequence[str | None], successes: Sequence[float], k: int, seed: int = SEED
) -> float:
    """The expected success of the most frequent answer among k episodes of a task.

    For k = 1 and for all episodes the value is exact. Otherwise it is the mean over :data:`DRAWS`
    random subsets, which is unbiased. Equally frequent answers are chosen with equal chance. An
    answer's success is the mean over its episodes. Missing answers have no vote.

    Args:
        answers: the final answers of a task's episodes.
        successes: the success of each episode.
        k: number of episodes that vote.
        seed: the seed of the subsets.

    Raises:
        ValueError: k is below 1 or above the number of episodes.

    Example:
        >>> majority_at_k(["A", "A", "B"], [1.0, 1.0, 0.0], 3)
        1.0
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"k ({k}) must be from 1 to the number of episodes ({len(answers)})")
    names = list(dict.fromkeys(answers))
    sizes = np.array([answers.count(name) for name in names])
    value = np.array(
        [
            fmean(s for a, s in zip(answers, successes, strict=True) if a == name)
            if name is not None
            else 0.0
            for name in names
        ]
    )
    if k == 1:
        return float(value @ sizes / len(answers))
    if k == len(answers):
        votes = sizes[None]
    else:
        votes = np.random.default_rng(seed).multivariate_hypergeometric(sizes, k, size=DRAWS)
    votes = np.where(np.array([name is None for name in names]), 0, votes)
    most = votes.max(axis=1, keepdims=True)
    winners = (votes == most) & (most > 0)
    return float(np.mean((winners @ value) / np.maximum(winners.sum(axis=1), 1)))

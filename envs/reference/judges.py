"""Judgements of answers, and their rewards.

Su et al., "Crossing the Reward Bridge: Expanding RL with Verifiable Rewards Across Diverse Domains"
(arXiv:2503.23829): a judge compares the last step of a solution with an expert's reference answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from envs.judges.chooser import Chooser, JudgeFailure
from envs.judges.verdicts import agreement
from envs.rewards.answers import exact_match, jaccard
from tools.threads import in_thread

__all__ = [
    "ChooserJudge",
    "Judge",
    "JudgeFailure",
    "Judgement",
    "ask",
    "final_step",
    "rule_judge",
]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict on one answer."""

    correct: bool
    """The judge's label: True if the answer agrees with the reference."""
    probability: float = 1.0
    """The judge's probability of its label, from 0 to 1."""

    def __post_init__(self) -> None:
        # This form of the comparison also rejects nan.
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"a judgement's probability ({self.probability}) must be from 0 to 1")

    @property
    def binary(self) -> float:
        """The paper's binary reward: 1 for the label "correct"."""
        return float(self.correct)

    @property
    def soft(self) -> float:
        """The paper's soft reward: the judge's probability that the answer is right.

        That is p(1) if the label is 1, and 1 - p(0) if the label is 0 (section 3).
        """
        return self.probability if self.correct else 1.0 - self.probability


Judge = Callable[[str, str, str], Judgement | bool | Awaitable[Judgement | bool]]
"""A function (question, reference, answer) -> judgement. Plain functions run in a thread."""


async def rule_judge(question: str, reference: str, answer: str) -> Judgement:
    """The paper's rule, which compares the words of the answer with those of the reference.

    An answer is right if it equals the reference after SQuAD's normalisation. The soft reward of
    any other answer is its Jaccard index with the reference, from 0 to 1.
    """
    if exact_match(answer, [reference]):
        return Judgement(True)
    return Judgement(False, 1.0 - jaccard(answer, [reference]))


class ChooserJudge:
    """A judge that gives the more probable of YES and NO, for example with a local model.

    Args:
        chooser: the model.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    async def __call__(self, question: str, reference: str, answer: str) -> Judgement:
        """The model's judgement.

        Raises:
            JudgeFailure: the model gives no verdict.
        """
        yes = await agreement(self._chooser, question, reference, answer)
        return Judgement(True, yes) if yes >= 0.5 else Judgement(False, 1 - yes)


async def ask(judge: Judge, question: str, reference: str, answer: str) -> Judgement:
    """Call a judge and return its judgement.

    Raises:
        JudgeFailure: the judge gave no verdict.
        TypeError: the judge's result is not a judgement.
    """
    said: object
    if inspect.iscoroutinefunction(judge) or inspect.iscoroutinefunction(type(judge).__call__):
        said = judge(question, reference, answer)
    else:
        said = await in_thread(partial(judge, question, reference, answer))
    judgement = await said if inspect.isawaitable(said) else said
    if isinstance(judgement, bool):
        return Judgement(judgement)
    if not isinstance(judgement, Judgement):
        raise TypeError(f"a judge must give a Judgement or a bool, not {judgement!r:.60}")
    return judgement


def final_step(text: str) -> str:
    """The last non-empty line of a text, stripped. The paper's judge reads only this line."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

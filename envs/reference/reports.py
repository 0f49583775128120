"""Generated reports about places that closed, questions about the causes, and scripted policies.

The answer is a phrase of the report, so no other source is needed and everything runs offline.
"""

from __future__ import annotations

import random
import re

import numpy as np

from envs.datasets.generated import DrawnTasks
from envs.reference.task import ReferenceTask


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINGS = _words(
    "bridge mill ferry school market tower library tunnel harbour theatre bakery station"
)
PLACES = _words(
    "Bako Rumi Telmo Sanda Virel Doras Kemi Lupan Osta Pirin Welda Zarim Hedon Jorla Munde Nisso "
    "Alder Corva Egmo Fenla Gordu Ilmar Quenna Tovik"
)
FAULTS = _words(
    "crack flood fire leak nest wire stone hole storm smell rat noise lock pipe beam ghost"
)
PARTS = _words("cellar roof kitchen yard wall attic gate engine garden hall well corner floor shed")
_SENTENCE = re.compile(r"The (\w+) of (\w+) was closed because of (a \w+ in the \w+)\.")
_QUESTION = re.compile(r"Why was the (\w+) of (\w+) closed\?")

RIGHT_SENTENCE, WHOLE_PHRASE = 0.6, 0.7
"""Probabilities of two independent events: the careless reader finds the right sentence, and the
reader copies the whole cause."""


class ReportTasks(DrawnTasks[ReferenceTask]):
    """The reports of one split. A hash of the whole text selects the split.

    Args:
        split: "train", "validation" or "test".
        seed: seed of the reports.
        sentences: sentences per report.
    """

    def __init__(self, split: str, seed: int, sentences: int) -> None:
        super().__init__(
            f"reports {sentences}",
            split,
            seed,
            lambda rng: _draw(rng, sentences),
            lambda task: task.question,
        )


def _draw(rng: random.Random, sentences: int) -> ReferenceTask:
    subjects = rng.sample([(thing, place) for thing in THINGS for place in PLACES], sentences)
    causes = rng.sample(
        [f"a {fault} in the {part}" for fault in FAULTS for part in PARTS], sentences
    )
    lines = [
        f"The {thing} of {place} was closed because of {cause}."
        for (thing, place), cause in zip(subjects, causes, strict=True)
    ]
    asked = rng.randrange(sentences)
    thing, place = subjects[asked]
    question = f"Why was the {thing} of {place} closed?"
    return ReferenceTask("\n".join([*lines, question]), causes[asked])


def read(observation: str) -> str:
    """The answer to an observation, which is a cause in its report.

    Raises:
        ValueError: the text is not such a report, or has no answer.
    """
    asked = _QUESTION.search(observation)
    causes = {(thing, place): cause for thing, place, cause in _SENTENCE.findall(observation)}
    if asked is None or asked.groups() not in causes:
        raise ValueError(f"{observation!r:.80} does not say what it asks")
    return str(causes[asked[1], asked[2]])


class CarelessReader:
    """A policy that often answers with the cause in a wrong sentence, or with part of the cause.

    Args:
        rng: draws the errors.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, observation: str) -> str:
        """The answer to a report's question, often a wrong one."""
        cause = read(observation)
        if self._rng.random() >= RIGHT_SENTENCE:
            cause = str(self._rng.choice([found[2] for found in _SENTENCE.findall(observation)]))
        if self._rng.random() >= WHOLE_PHRASE:
            cause = cause.partition(" in ")[0]
        return cause

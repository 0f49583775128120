"""A world of invented people, the passages that tell of it, and questions about it.

Every person has a home, a colour, a drink, a sport, a friend and a teacher. One passage states
one fact: "The sport of Bako is chess." A question asks for an attribute of a person ("The person
is Bako. Find the sport.", one hop) or of that person's friend or teacher ("The person is Bako. Find
the sport of the teacher.", two hops). Whatever must be copied, from a question into a query or from
a passage into an answer, stands behind the last "is": a small model learns that once, for all.

The splits hold disjoint sets of people, and friends and teachers are of one's own split: no fact
that a test question needs is asked for, or passed through, by any train question. A model that
has memorised the train split knows nothing of the test split; it must search. All splits share
one library of passages, so that a search has to find its way among the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tools.retrieval import Passage

SPLIT_SIZES: Mapping[str, int] = {"train": 800, "validation": 200, "test": 200}
"""People per split."""
NUM_TOWNS = 300
LINKS = ("friend", "teacher")
"""Relations that lead to another person."""
INVENTORIES: Mapping[str, tuple[str, ...]] = {
    "colour": (
        *("amber", "black", "blue", "brown", "gold", "green"),
        *("grey", "pink", "purple", "red", "silver", "white"),
    ),
    "drink": (
        *("cider", "cocoa", "coffee", "cola", "juice", "lemonade"),
        *("milk", "nectar", "punch", "sherry", "tea", "water"),
    ),
    "sport": (
        *("boxing", "chess", "cricket", "darts", "fencing", "golf"),
        *("hockey", "judo", "polo", "rowing", "rugby", "tennis"),
    ),
}
"""Attributes whose value is one of a few words. "home" is the attribute with invented names."""
ATTRIBUTES = ("home", *INVENTORIES)

# Without an "e" no name is an English stop word (here, more, same); without a repeated syllable
# none is baby talk. Two short syllables are few tokens for any tokenizer.
_SYLLABLES = tuple(consonant + vowel for consonant in "bdklmnrstv" for vowel in "aiou")
_WORLD_STREAM, _ORDER_STREAM = 0x5EA, 0x0DE


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One question and its answers."""

    question: str
    answers: tuple[str, ...]
    """Any of them is right."""
    hops: int
    """How many passages must be read, each found by what the one before it says."""


def passage_text(relation: str, person: str, value: str) -> str:
    """The sentence that states one fact."""
    return f"The {relation} of {person} is {value}."


class World:
    """People, facts and passages of one seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([_WORLD_STREAM, seed])
        names = [
            (first + second).capitalize()
            for first in _SYLLABLES
            for second in _SYLLABLES
            if first != second
        ]
        rng.shuffle(names)
        self.towns = tuple(names[:NUM_TOWNS])
        self.people: dict[str, tuple[str, ...]] = {}
        self.facts: dict[tuple[str, str], str] = {}
        """(relation, person) -> value."""
        start = NUM_TOWNS
        for split, size in SPLIT_SIZES.items():
            self.people[split] = tuple(names[start : start + size])
            start += size
            self._tell(self.people[split], rng)
        self._passage_order = rng.permutation(len(self.facts))

    def passages(self) -> list[Passage]:
        """One passage per fact, titled with its person; all splits shuffled together."""
        facts = zip(self._passage_order, self.facts.items(), strict=True)
        return [
            Passage(f"{number:05d}", passage_text(relation, person, value), title=person)
            for number, ((relation, person), value) in facts
        ]

    def inventory(self, attribute: str) -> tuple[str, ...]:
        """Every value that an attribute may have."""
        return self.towns if attribute == "home" else INVENTORIES[attribute]

    def _tell(self, people: tuple[str, ...], rng: np.random.Generator) -> None:
        """Invent every fact about ``people``."""
        count = len(people)
        for number, person in enumerate(people):
            for attribute in ATTRIBUTES:
                values = self.inventory(attribute)
                self.facts[attribute, person] = values[int(rng.integers(len(values)))]
            for link in LINKS:
                other = (number + 1 + int(rng.integers(count - 1))) % count
                self.facts[link, person] = people[other]


@lru_cache(maxsize=8)
def make_world(seed: int) -> World:
    """The world of a seed; the same object every time, never to be changed."""
    return World(seed)


class SearchTasks:
    """The questions of one split, in an order shuffled by the seed.

    Args:
        hops: "1", "2" or "mixed"; the latter alternates between one and two hops.
    """

    def __init__(self, split: str, seed: int, hops: str) -> None:
        self._world = make_world(seed)
        self._people = self._world.people[split]
        self._hops = hops
        self._single = len(self._people) * len(ATTRIBUTES)
        self._double = self._single * len(LINKS)
        rng = np.random.default_rng([_ORDER_STREAM, seed])
        self._single_order = rng.permutation(self._single)
        self._double_order = rng.permutation(self._double)

    def __len__(self) -> int:
        if self._hops == "mixed":
            return 2 * self._single
        return self._single if self._hops == "1" else self._double

    def __getitem__(self, index: int) -> SearchTask:
        if self._hops == "1":
            return self._one_hop(index)
        if self._hops == "2":
            return self._two_hops(index)
        half, odd = divmod(index, 2)
        return self._two_hops(half) if odd else self._one_hop(half)

    def _one_hop(self, index: int) -> SearchTask:
        who, what = divmod(int(self._single_order[index]), len(ATTRIBUTES))
        person, attribute = self._people[who], ATTRIBUTES[what]
        answer = self._world.facts[attribute, person]
        return SearchTask(f"The person is {person}. Find the {attribute}.", (answer,), 1)

    def _two_hops(self, index: int) -> SearchTask:
        rest, what = divmod(int(self._double_order[index]), len(ATTRIBUTES))
        who, which = divmod(rest, len(LINKS))
        person, link, attribute = self._people[who], LINKS[which], ATTRIBUTES[what]
        answer = self._world.facts[attribute, self._world.facts[link, person]]
        return SearchTask(
            f"The person is {person}. Find the {attribute} of the {link}.", (answer,), 2
        )

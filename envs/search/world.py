"""A world of invented people, passages about it, and questions.

Every person has a home, a colour, a drink, a sport, a friend and a teacher. One passage states one
fact: "The sport of Bako is chess." A question asks for an attribute of a person ("The person is
Bako. Find the sport.", one hop) or of that person's friend or teacher ("The person is Bako. Find
the sport of the teacher.", two hops). Options add questions of three hops and about the older of
two people. The word to copy, from a question into a query or from a passage into an answer, always
follows the last "is". A small model therefore has one rule to learn.

Each person is in one split, together with the friend and the teacher. Therefore test questions and
train questions need different facts, and a model that has memorised the train split must still
search in the test split. All splits share one library of passages.
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
"""Attributes whose values come from a list of words. The values of "home" are invented names."""
ATTRIBUTES = ("home", *INVENTORIES)
YEAR = "year"
"""The attribute "year of birth", which decides who of two people is older."""
FIRST_YEAR, NUM_YEARS = 1600, 400
DISTRACTORS = (
    *("neighbour", "rival", "cousin", "landlord", "doctor", "lawyer"),
    *("barber", "baker", "tailor", "gardener", "driver", "partner"),
)
"""Relations that no question asks for."""
KINDS = ("1", "2", "3", "comparison")
"""Kinds of questions."""
MIXTURES: Mapping[str, tuple[str, ...]] = {"mixed": ("1", "2"), "all": KINDS}
"""Names of mixtures, each with the kinds of questions that alternate in it."""

# Without an "e", no name is an English stop word (here, more, same); without repeated syllables,
# none is baby talk. Two short syllables are few tokens in any tokenizer.
_SYLLABLES = tuple(consonant + vowel for consonant in "bdklmnrstv" for vowel in "aiou")
_WORLD_STREAM, _ORDER_STREAM = 0x5EA, 0x0DE


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One question and its answers."""

    question: str
    answers: tuple[str, ...]
    """Accepted answers."""
    hops: int
    """Number of passages that an answer needs."""
    titles: tuple[str, ...] = ()
    """Titles of the pages that an answer needs, if the data set names them."""
    own_prompt: bool = False
    """Whether the question explains how to search and to answer, as Search-R1's rows do."""


def passage_text(relation: str, person: str, value: str) -> str:
    """The sentence that states a fact."""
    return f"The {relation} of {person} is {value}."


class World:
    """People, facts and passages of one seed.

    Args:
        seed: seed of all random choices.
        years: whether people have a year of birth.
        distractors: number of relations per person that no question needs, one passage each.
    """

    def __init__(self, seed: int, *, years: bool = False, distractors: int = 0) -> None:
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
        """Values by relation and person."""
        start = NUM_TOWNS
        for split, size in SPLIT_SIZES.items():
            self.people[split] = tuple(names[start : start + size])
            start += size
            self._write_facts(self.people[split], rng)
        for people in self.people.values():
            for person in people:
                if years:
                    self.facts[YEAR, person] = str(FIRST_YEAR + int(rng.integers(NUM_YEARS)))
                for relation in DISTRACTORS[:distractors]:
                    self.facts[relation, person] = people[int(rng.integers(len(people)))]
        self._passage_order = rng.permutation(len(self.facts))

    def passages(self) -> list[Passage]:
        """One passage per fact, with the person as its title.

        The passages of all splits are shuffled.
        """
        facts = zip(self._passage_order, self.facts.items(), strict=True)
        return [
            Passage(f"{number:05d}", passage_text(relation, person, value), title=person)
            for number, ((relation, person), value) in facts
        ]

    def inventory(self, attribute: str) -> tuple[str, ...]:
        """All values of an attribute."""
        return self.towns if attribute == "home" else INVENTORIES[attribute]

    def _write_facts(self, people: tuple[str, ...], rng: np.random.Generator) -> None:
        """Draw all facts about ``people``."""
        count = len(people)
        for number, person in enumerate(people):
            for attribute in ATTRIBUTES:
                values = self.inventory(attribute)
                self.facts[attribute, person] = values[int(rng.integers(len(values)))]
            for link in LINKS:
                other = (number + 1 + int(rng.integers(count - 1))) % count
                self.facts[link, person] = people[other]


@lru_cache(maxsize=8)
def make_world(seed: int, *, years: bool = False, distractors: int = 0) -> World:
    """The world of a seed. It is cached and must not be modified."""
    return World(seed, years=years, distractors=distractors)


def has_years(hops: str) -> bool:
    """Whether this kind of questions, or this mixture of kinds, includes comparisons."""
    return "comparison" in MIXTURES.get(hops, (hops,))


class SearchTasks:
    """The questions of one split, in an order shuffled by the seed.

    Args:
        split: "train", "validation" or "test".
        seed: seed of the world and of the order.
        hops: a kind of ``KINDS``, "mixed" (alternates one and two hops) or "all" (each kind).
        distractors: number of distractors per person; it does not affect the questions.
    """

    def __init__(self, split: str, seed: int, hops: str, distractors: int = 0) -> None:
        self._world = make_world(seed, years=has_years(hops), distractors=distractors)
        self._people = self._world.people[split]
        self._kinds = MIXTURES.get(hops, (hops,))
        self._single = len(self._people) * len(ATTRIBUTES)
        self._sizes = {
            "1": self._single,
            "2": self._single * len(LINKS),
            "3": self._single * len(LINKS) ** 2,
            "comparison": self._single,
        }
        rng = np.random.default_rng([_ORDER_STREAM, seed])
        self._orders = {kind: rng.permutation(size) for kind, size in self._sizes.items()}
        self._partners = rng.integers(1, len(self._people), size=self._single)

    def __len__(self) -> int:
        if len(self._kinds) > 1:
            return len(self._kinds) * self._single
        return self._sizes[self._kinds[0]]

    def __getitem__(self, index: int) -> SearchTask:
        place, kind = divmod(index, len(self._kinds))
        return self._question(self._kinds[kind], int(self._orders[self._kinds[kind]][place]))

    def _question(self, kind: str, number: int) -> SearchTask:
        if kind == "comparison":
            return self._comparison(number)
        rest, what = divmod(number, len(ATTRIBUTES))
        links = list[str]()
        for _ in range(int(kind) - 1):
            rest, which = divmod(rest, len(LINKS))
            links.append(LINKS[which])
        person = self._people[rest]
        asked = "".join(f" of the {link}" for link in links)
        question = f"The person is {person}. Find the {ATTRIBUTES[what]}{asked}."
        for link in reversed(links):
            person = self._world.facts[link, person]
        answer = self._world.facts[ATTRIBUTES[what], person]
        return SearchTask(question, (answer,), len(links) + 1)

    def _comparison(self, number: int) -> SearchTask:
        facts, count = self._world.facts, len(self._people)
        who, what = divmod(number, len(ATTRIBUTES))
        other = who + int(self._partners[number])
        one = self._people[who]
        while other % count == who or facts[YEAR, self._people[other % count]] == facts[YEAR, one]:
            other += 1
        pair = (one, self._people[other % count])
        elder = min(pair, key=lambda person: int(facts[YEAR, person]))
        return SearchTask(
            f"The people are {pair[0]} and {pair[1]}. Find the {ATTRIBUTES[what]} of the elder.",
            (facts[ATTRIBUTES[what], elder],),
            3,
        )

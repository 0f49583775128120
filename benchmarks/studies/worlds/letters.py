"""``letters-v0``: short letters, scored by a hidden rule of the reader.

An episode::

    To Ann, about tea and rain.
    dear Ann , the tea is lovely . the rain is late . thank you

The rule depends on the text alone (:func:`liking`): from -2.5 to 4.5 in steps of 0.5. It is the
environment's reward, so it can label preferences and measure what is learned from them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, finish

NAMES = (
    *("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon"),
    *("Kim", "Leo", "Mia", "Ned", "Ona", "Pia", "Rex", "Sue", "Tom", "Una"),
)
TOPICS = (
    *("tea", "rain", "bread", "garden", "train", "music", "coat", "river", "soup", "letter"),
    *("lamp", "bicycle", "cat", "window", "market", "sea", "bird", "clock", "field", "honey"),
    *("boat", "snow", "table", "bridge"),
)
KIND = ("lovely", "bright", "gentle", "splendid", "sweet", "calm")
PLAIN = ("late", "old", "new", "small", "long", "near")
HARSH = ("awful", "dull", "ugly", "stupid", "broken", "foul")
THANKS = "thank you"
MOST_WORDS = 24
"""The reader's patience, full stops and commas not counted."""
FIRST = {"train": 0, "validation": 1, "test": 2}


class Letter(NamedTuple):
    """To whom, and about what."""

    name: str
    topics: tuple[str, str]


def liking(task: Letter, text: str) -> dict[str, float]:
    """What the reader likes and dislikes in a letter, and how much.

    ==========  ==========================================================  ==========
    greeting    it begins with "dear" and the right name                    1
    about       a topic that it was to be about is named                    0.5
    kind        each different kind word, four at most                      0.5 each
    thanks      it ends with "thank you"                                    1
    harsh       each harsh word, four at most                               -0.5 each
    length      it is longer than ``MOST_WORDS`` words                      -0.5
    ==========  ==========================================================  ==========
    """
    words = [word for word in text.split() if word not in ",."]
    harsh = sum(word in HARSH for word in words)
    return {
        "greeting": float(words[:2] == ["dear", task.name]),
        "about": 0.5 * any(topic in words for topic in task.topics),
        "kind": 0.5 * min(4, len(set(words) & set(KIND))),
        "thanks": float(words[-2:] == THANKS.split()),
        "harsh": -0.5 * min(4, harsh),
        "length": -0.5 * (len(words) > MOST_WORDS),
    }


# An environment is made for each episode: without the cache, most of a rollout's time goes here.
@cache
def letters(split: str, seed: int) -> tuple[Letter, ...]:
    """The tasks of a split: each letter there is, once, is in one of the three."""
    every = [
        Letter(name, (one, other))
        for name in NAMES
        for one in TOPICS
        for other in TOPICS
        if one != other
    ]
    random.Random(seed).shuffle(every)
    return tuple(every[FIRST[split] :: 3])


@dataclass(slots=True)
class LetterState:
    """An episode's state."""

    task: Letter


class LettersEnv(TextEnv[Letter, LetterState]):
    """Letters that a reader likes or not; see the module's docstring."""

    reward_range = (-2.5, 4.5)
    reward_floor = 0.0

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, letters(options.split, options.seed), services)

    def begin(self, task: Letter) -> str:
        """What is asked for."""
        self.state = LetterState(task)
        return f"To {task.name}, about {task.topics[0]} and {task.topics[1]}."

    def turn(self, action: Action) -> Reply:
        """How much the reader likes it."""
        return finish(liking(self.state.task, action))

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """Writes letters without a thought for the reader."""

        def pick(words: tuple[str, ...]) -> str:
            return words[int(rng.integers(len(words)))]

        def sentence(task: Letter) -> str:
            topic = pick(task.topics) if rng.random() < 0.75 else pick(TOPICS)
            tone = (KIND, PLAIN, HARSH)[int(rng.choice(3, p=[0.35, 0.35, 0.3]))]
            return f"the {topic} is {pick(tone)} ."

        def say(observation: str) -> str:
            task = self.state.task
            parts = []
            if rng.random() < 0.4:
                parts.append(f"dear {task.name if rng.random() < 0.8 else pick(NAMES)} ,")
            parts += [sentence(task) for _ in range(int(rng.integers(1, 5)))]
            if rng.random() < 0.3:
                parts.append(THANKS)
            return " ".join(parts)

        return say
